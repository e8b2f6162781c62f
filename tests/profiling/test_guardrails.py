from __future__ import annotations

from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Evaluation, Outcome, Resources, Source, Timing
from mctskernel.core.task import Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.guardrails import Peaks, flags, floor_seconds, quarantine_reason

PEAKS = Peaks(dram_bytes_per_second=3e12, flops_per_second=1e15, l2_bytes=50 << 20)


@pytest.fixture(scope="module")
def transpose() -> Task:
    return load_task(Path(mctskernel.tasks.__file__).parent / "transpose")


def at(task: Task, seconds: float) -> tuple[Timing, ...]:
    return tuple(Timing(shape_label(shape), seconds, seconds, seconds) for shape in task.search_shapes)


def evaluation(registers: int = 32, seconds: float = 1.0, noise: float = 0.0, **spent: int) -> Evaluation:
    timing = Timing("n=1", seconds, seconds * (1 - noise), seconds * (1 + noise))
    resources = Resources("k", registers, 0, **spent)
    return Evaluation(Outcome.OK, Source.MODELLED, timings=(timing,), resources=(resources,))


def test_a_time_below_the_roofline_is_not_believed(transpose: Task) -> None:
    floor = floor_seconds(transpose, transpose.search_shapes[0], PEAKS)
    assert "can't have done the work" in quarantine_reason(transpose, at(transpose, 0.5 * floor), PEAKS)
    assert quarantine_reason(transpose, at(transpose, 1.01 * floor), PEAKS) == ""


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_is_not_believed(transpose: Task, seconds: float) -> None:
    assert "no time" in quarantine_reason(transpose, at(transpose, seconds), PEAKS)


def test_what_is_still_in_l2_is_not_on_the_floor(transpose: Task) -> None:
    shape = transpose.search_shapes[0]
    nbytes = transpose.inputs[0].nbytes(shape)
    assert floor_seconds(transpose, shape, PEAKS) == pytest.approx((2 * nbytes - (50 << 20)) / 3e12)


def test_slower_than_the_parent_by_more_than_the_noise_is_flagged() -> None:
    parent = evaluation()
    assert flags(evaluation(seconds=1.01), parent) == ()
    assert "Slower than its parent" in flags(evaluation(seconds=1.1), parent)[0]
    assert flags(evaluation(seconds=1.1, noise=0.2), parent) == ()
    assert flags(evaluation(seconds=1.1)) == ()


def test_spills_and_cliffs_are_flagged() -> None:
    assert "spills 8 bytes" in flags(evaluation(spill_store_bytes=8))[0]
    assert "local memory" in flags(evaluation(stack_bytes=64))[0]
    assert "the most there are" in flags(evaluation(registers=255))[0]
    assert "past the cliff at 64" in flags(evaluation(registers=65), evaluation(registers=64))[0]
    (once,) = flags(evaluation(registers=127), evaluation(registers=32))
    assert "past the cliff at 64" in once
    assert flags(evaluation(registers=70), evaluation(registers=65)) == ()
