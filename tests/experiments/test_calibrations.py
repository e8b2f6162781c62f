"""Two calibrations side by side, on a GPU on paper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.experiments import calibrations
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.calibration.calibration import calibrate_gpu, describe_gpu
from mctskernel.profiling.calibration.document import document
from tests.profiling.calibration.paper_gpu import PaperGpu

H100, H200 = load_architecture("H100"), load_architecture("H200")


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The command in a process of its own is an H100 on paper, and so is this machine's GPU."""
    commands: list[tuple[str, ...]] = []

    def command(words: tuple[str, ...], check: bool) -> subprocess.CompletedProcess[Any]:
        commands.append(words)
        Path(words[5]).write_text(document(calibrate_gpu(PaperGpu(H100), H100), {}))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(calibrations.subprocess, "run", command)
    monkeypatch.setattr(calibrations, "open_machine", lambda: (PaperGpu(H100), {"gpu": "paper"}, ()))
    return commands


def test_both_are_compared_and_everything_is_written(paper: list[tuple[str, ...]], tmp_path: Path) -> None:
    result = CliRunner().invoke(calibrations.main, ["--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert paper[0][:4] == (sys.executable, "-m", "mctskernel", "calibrate")
    assert "30 of 30 within 10% of the description; beyond: none" in result.output
    report = msgspec.json.decode(
        (tmp_path / "out" / "calibrations.json").read_bytes(), type=calibrations.Report
    )
    assert {row.constant for row in report.rows} >= {"latency.l2", "memory.dram_bytes_per_second"}
    assert all(abs(row.repeat) < 0.02 for row in report.rows)
    assert (tmp_path / "out" / "second.toml").is_file()
    # The times are enough to fit the constants again.
    again = describe_gpu(report.board, report.timings, H100)
    assert again.architecture == load_architecture(str(tmp_path / "out" / "second.toml"))


def test_another_description_is_further_away(paper: list[tuple[str, ...]], tmp_path: Path) -> None:
    result = CliRunner().invoke(calibrations.main, ["--out", str(tmp_path), "--against", "H200"])
    assert paper[0][-2:] == ("--against", "H200")
    assert "beyond: memory.dram_bytes_per_second" in result.output


def test_without_a_gpu_it_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = subprocess.CompletedProcess[Any]((), 5)
    monkeypatch.setattr(calibrations.subprocess, "run", lambda words, check: failed)
    result = CliRunner().invoke(calibrations.main, ["--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "The first calibration failed" in result.output
