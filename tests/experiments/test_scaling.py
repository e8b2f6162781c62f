"""The list of kernels, and a run on the model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.core.executor import CounterSet
from mctskernel.experiments import scaling
from mctskernel.profiling import build_cache


def test_the_table_compares_with_one_gpu_of_the_same_engine_and_counters() -> None:
    arms = [
        scaling.Arm("local", CounterSet.ALL, 1, 5, 50, 10.0),
        scaling.Arm("local", CounterSet.ALL, 2, 8, 50, 5.1),
        scaling.Arm("ray", CounterSet.ALL, 2, problem="There is no such cluster."),
    ]
    rows = [[cell.strip() for cell in line.split("|")][1:-1] for line in scaling.table(arms).splitlines()]
    assert rows[3] == ["local", "all", "2", "8", "50", "9.80", "1.96"]
    assert rows[4] == ["ray", "all", "2", "0", "0", "There is no such cluster.", ""]


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
