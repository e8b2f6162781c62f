"""Seconds per candidate by stage, where there is no GPU and on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.experiments.evaluator_cost import main
from mctskernel.profiling import build_cache
from tests.conftest import WriteTask


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command switches the build cache off."""
    monkeypatch.setenv(build_cache.VARIABLE, "")


@pytest.mark.slow
def test_every_stage_of_a_search_has_its_seconds(tmp_path: Path, write_task: WriteTask) -> None:
    out = tmp_path / "cost.json"
    arguments = ("--task", str(write_task()), "--budget", "2", "--language", "cuda", "--device", "model")
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (cost,) = json.loads(out.read_text())["searches"]
    assert (cost["candidates"], cost["machine"]["device"]) == (2, "model")
    assert cost["total_seconds"] > 0
    assert "| all, median" in result.output
