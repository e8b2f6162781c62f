"""Weights of the reward: searches of a recorded run are paired by seed."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.experiments import reward_value
from mctskernel.experiments.reward_value import (
    CHECKPOINTS,
    TIME_ALONE,
    WEIGHTS,
    Report,
    Trial,
    document,
)

RECORDED = Path(__file__).parents[2] / "notebooks" / "recorded" / "matmul_mcts_h100.tar.xz"


def trial(task: int, seed: int, weight: str, share: float) -> Trial:
    return Trial(f"space {task}", f"task {task}", weight, seed, (share,) * len(CHECKPOINTS))


def report(gain: float) -> Report:
    trials = [
        trial(task, seed, weight, 0.5 + 0.01 * seed + (gain if weight != TIME_ALONE else 0.0))
        for task in range(8)
        for seed in range(3)
        for weight in (TIME_ALONE, *WEIGHTS)
    ]
    return Report("mcts", 3, CHECKPOINTS, dict(WEIGHTS), trials)


def test_the_page_has_paired_differences() -> None:
    better = document(report(0.1))
    assert (
        "| a quarter of the noise   |          10 | 0.610 | +10.00 (+10.00 to +10.00) |   100% |    0% |"
        in better
    )
    # As likely as that any of nine tables' rows had all of 8 tasks on one side.
    assert f"{min(1.0, 9 * 2 / 2**8):.3f} |" in better
    same = document(report(0.0))
    assert "+0.00 (+0.00 to +0.00) |     0% |    0% | 1.000 | 1.000 |" in same


@pytest.mark.slow
def test_a_recorded_run_is_searched_again_with_every_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    written: list[Report] = []
    monkeypatch.setattr(reward_value, "write_result", lambda _path, found: written.append(found))
    done = CliRunner().invoke(
        reward_value.main, [str(tmp_path / "runs"), "--seeds", "1", "--out", str(tmp_path / "out.json")]
    )
    assert done.exit_code == 0, done.output
    (found,) = written
    assert {each.weight for each in found.trials} == {TIME_ALONE, *WEIGHTS}
    for each in found.trials:
        assert all(0.0 < share <= 1.0 for share in each.shares)
        assert list(each.shares) == sorted(each.shares)
    assert {each.task for each in found.trials} == {"matmul"}
    assert all(math.isfinite(weight) for weight in found.weights.values())
