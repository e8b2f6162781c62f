"""An executor whose kernels all take the same time: what is left is what serving costs."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager

from mctskernel.core.device import Device, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Timing
from mctskernel.core.executor import Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError
from mctskernel.executors.local import LocalExecutor

OPENER = f"{__name__}:open_stand_in"

SECONDS = "seconds"
"""The file of the task's folder that says how long an evaluation takes."""


class Sleeper:
    """A device that sleeps, and says in which process, and how often it did so there."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._seconds = float((spec.task_folder / SECONDS).read_text())
        self._source = spec.source
        self._calls = 0

    def evaluate(self, kernel: Kernel) -> Evaluation:  # noqa: ARG002 - all are alike
        """Sleep; the message is `PROCESS CALLS`."""
        time.sleep(self._seconds)
        self._calls += 1
        timings = (Timing("", 1e-3, 1e-3, 1e-3),)
        said, stages = f"{os.getpid()} {self._calls}", {"sleep": self._seconds}
        return Evaluation(Outcome.OK, self._source, said, timings, stage_seconds=stages)

    def fingerprint(self) -> dict[str, str]:
        """That nothing was built or run."""
        return {"device": "model", "gpu": "none: a stand-in sleeps"}


def open_sleeper(spec: DeviceSpec) -> Device:
    """The device, in a worker's process."""
    return Sleeper(spec)


def open_stand_in(
    spec: DeviceSpec,
    workers: int,
    options: ExecutorOptions,  # noqa: ARG001 - what a server's opener takes
) -> AbstractContextManager[Executor]:
    """The local executor, with such devices in its worker processes. Raises TaskError for no task of a stand-in's."""
    if not (spec.task_folder / SECONDS).exists():
        raise TaskError(f"A stand-in's task has a file '{SECONDS}'.")
    return LocalExecutor(spec, workers=workers, opener=open_sleeper)
