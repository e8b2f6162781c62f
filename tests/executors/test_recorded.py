"""Evaluations looked up: what they are, when they finish, what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import configuration_kernel
from mctskernel.executors.recorded import RecordedExecutor, executor_of
from tests import spaces

SPACE = spaces.bowl()


def lasting(durations: Sequence[float], workers: int) -> RecordedExecutor:
    """An executor of kernels whose text is an index into durations."""

    def look_up(kernel: Kernel) -> Evaluation:
        seconds = durations[int(kernel.source)]
        return Evaluation(Outcome.OK, Source.RECORDED, stage_seconds={"compile": seconds})

    return RecordedExecutor(look_up, {}, workers=workers)


def test_a_time_and_what_it_cost() -> None:
    executor = executor_of(SPACE)
    executor.submit(7, configuration_kernel(SPACE, spaces.BEST))
    ((ticket, found),) = executor.wait()
    assert ticket == 7
    assert (found.outcome, found.source) == (Outcome.OK, Source.RECORDED)
    assert found.timings == (Timing("", 0.001, 0.001, 0.001),)
    assert found.stage_seconds == {"compile": 2.0, "benchmark": 2.0}
    assert executor.wait() == []


def test_a_failure_and_what_the_file_calls_it() -> None:
    executor = executor_of(SPACE)
    executor.submit(0, configuration_kernel(SPACE, (256, 4, "row", True)))
    ((_, found),) = executor.wait()
    assert found.outcome is Outcome.BUILD_ERROR
    assert "CompilationFailedConfig" in found.message
    assert found.cost_seconds == 1.0


def test_what_the_space_does_not_have_is_rejected() -> None:
    executor = executor_of(SPACE)
    executor.submit(0, configuration_kernel(SPACE, (33, 1, "row", True)))
    executor.submit(1, Kernel("__global__ void k() {}"))
    found = [each for _ in range(2) for _, each in executor.wait()]
    assert [each.outcome for each in found] == [Outcome.REJECTED] * 2
    assert "no configuration block=33" in found[0].message


@given(durations=st.lists(st.integers(0, 9).map(float), min_size=1, max_size=20), workers=st.integers(1, 5))
def test_as_many_as_there_are_workers_are_in_flight(durations: list[float], workers: int) -> None:
    """The same finishing times as a list of workers, each taking the next evaluation when it is free."""
    executor = lasting(durations, workers)
    began, waiting = executor.clock(), list(range(len(durations)))
    finished: dict[int, float] = {}
    in_flight = 0
    while waiting or in_flight:
        while waiting and in_flight < executor.capacity:
            ticket = waiting.pop(0)
            executor.submit(ticket, Kernel(str(ticket)))
            in_flight += 1
        for ticket, _ in executor.wait():
            finished[ticket] = executor.clock() - began
            in_flight -= 1
    free = [0.0] * workers
    for ticket, duration in enumerate(durations):
        worker = free.index(min(free))
        free[worker] += duration
        assert finished[ticket] == pytest.approx(free[worker], abs=1e-5)
    assert list(finished.values()) == sorted(finished.values())
