"""Evaluations looked up: nothing is built or run, and what they cost is counted on a clock of their own."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Callable, Mapping

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Entry, SearchSpace, SpaceError, values_of
from mctskernel.core.task_file import load_task
from mctskernel.executors.tickets import Closing
from mctskernel.profiling.spaces import read_space


class RecordedExecutor(Closing):
    """`workers` evaluations in flight, each as long as `look_up` says that it took, and finished in that order.

    Nothing is waited for: `clock` is the simulated time in seconds since the epoch, and moves with every evaluation
    that finishes. Not shared between threads.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self, look_up: Callable[[Kernel], Evaluation], fingerprint: Mapping[str, str], *, workers: int = 1
    ) -> None:
        if workers < 1:
            raise ValueError(f"An executor needs at least one worker, not {workers}.")
        self.capacity = workers
        self._look_up = look_up
        self._fingerprint = dict(fingerprint)
        self._now = time.time()
        self._begun = 0
        self._in_flight: list[tuple[float, int, int, Evaluation]] = []

    def clock(self) -> float:
        """When the newest evaluation finished."""
        return self._now

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        found = self._look_up(kernel)
        self._begun += 1
        heapq.heappush(self._in_flight, (self._now + found.cost_seconds, self._begun, ticket, found))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:  # noqa: ARG002 - nothing takes time here
        """The evaluation that finishes first, the one that began first among equals. Empty when none is in flight."""
        if not self._in_flight:
            return []
        self._now, _, ticket, found = heapq.heappop(self._in_flight)
        return [(ticket, found)]

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:  # noqa: ARG002 - nothing can be run
        """What was recorded, once more: a recorded kernel can't be run again."""
        return self._look_up(kernel)

    def fingerprint(self) -> dict[str, str]:
        return dict(self._fingerprint)

    def close(self) -> None:
        """Nothing is open."""
        self._in_flight.clear()


def open_recorded(spec: DeviceSpec, workers: int, options: ExecutorOptions = LOCAL) -> RecordedExecutor:  # noqa: ARG001 - opens a device
    """What looks up the configurations of a task's space. Raises TaskError, SpaceError, and DeviceError without one."""
    task = load_task(spec.task_folder)
    if not task.space:
        raise DeviceError(
            f"{task.name} has no search-space cache: kernels are evaluated on --device gpu or model; a file of "
            "recorded configurations is searched with --space FILE."
        )
    return executor_of(read_space(task.folder / task.space), workers)


def executor_of(space: SearchSpace, workers: int = 1) -> RecordedExecutor:
    """What looks up the configurations of a space; one that the space doesn't have is rejected."""

    def look_up(kernel: Kernel) -> Evaluation:
        try:
            return evaluation_of(space.by_values[values_of(space, kernel)])
        except SpaceError as error:
            return Evaluation(Outcome.REJECTED, Source.RECORDED, message=str(error))

    # Equal for spaces with the same parameters and results, whatever their files look like.
    digest = hashlib.sha256(repr(space.parameters).encode())
    for entry in space.entries:
        digest.update(f"{entry.values}{entry.outcome}{entry.seconds}".encode())
    fingerprint = {
        "device": "recorded",
        "gpu": space.device or "unknown GPU",
        "space": space.name,
        "recording": digest.hexdigest()[:16],
    }
    return RecordedExecutor(look_up, fingerprint, workers=workers)


def evaluation_of(entry: Entry) -> Evaluation:
    """What was recorded, as an evaluation that took as long as it did then."""
    timings = (Timing("", entry.seconds, entry.seconds, entry.seconds),) if entry.seconds is not None else ()
    message = f"Recorded as '{entry.word}'." if entry.word else ""
    return Evaluation(
        entry.outcome, Source.RECORDED, message, timings, stage_seconds=dict(entry.stage_seconds)
    )
