"""The list of kernels, and a run on the model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.experiments import scaling
from mctskernel.profiling import build_cache


@pytest.mark.slow
def test_an_arm_is_measured_in_a_process_of_its_own(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build_cache.VARIABLE, "")
    out = tmp_path / "scaling.json"
    words = ["--task", str(small_task), "--device", "model", "--gpus", "1", "--kernels", "2", "--rounds", "1"]
    done = CliRunner().invoke(scaling.main, [*words, "--settling", "0", "--out", str(out)])
    assert done.exit_code == 0, done.output
    (arm,) = msgspec.json.decode(out.read_bytes(), type=list[scaling.Arm])
    assert (arm.evaluations, arm.failures, arm.problem) == (2, 0, "")
