"""A worker: a confined child process that builds kernels or evaluates them on a device of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from mctskernel.core.device import Device, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import build_cache
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.processes.channel import Ready
from mctskernel.profiling.processes.child_process import LostError
from mctskernel.profiling.processes.conversation import Conversation
from mctskernel.profiling.processes.worker_process import (
    REPLIES,
    Evaluate,
    Evaluated,
    Fingerprint,
    Fingerprinted,
    Open,
    Prepare,
    Prepared,
    Reply,
)

Opener = Callable[[DeviceSpec], Device]

BUILD_SECONDS = 60.0
"""Few kernels take a second. One that takes this long would hold up a search more than it could gain."""


@dataclass(frozen=True)
class Limits:
    """What a candidate may cost in processor seconds and bytes; `opening_seconds` are for opening a device."""

    seconds: float = 30.0
    memory_bytes: int = 6 << 30
    opening_seconds: float = 180.0


class Worker:
    """One process, replaced when it dies. For one thread, besides `interrupt`.

    `opener`, a function of an importable module, opens the device inside the process; None makes a worker that only
    builds. Every request raises DeviceError when the device can't be opened, or turns out to be broken.
    """

    def __init__(
        self, spec: DeviceSpec, *, limits: Limits | None = None, opener: Opener | None = open_device
    ) -> None:
        self._source = spec.source
        self._limits = limits or Limits()
        opening = Open(
            replace(spec, task_folder=spec.task_folder.resolve()),
            f"{opener.__module__}:{opener.__qualname__}" if opener is not None else "",
            self._limits.memory_bytes,
        )
        self._process: Conversation[Reply] = Conversation(
            "mctskernel.profiling.processes.worker_process",
            "evaluated the kernel" if opener is not None else "compiled the kernel",
            opening,
            REPLIES,
            self._opened,
            opening_seconds=self._limits.opening_seconds,
        )

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._process.pid

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """The device's evaluation of a kernel; a crash or a timeout of the process is the kernel's."""
        try:
            match self._ask(Evaluate(kernel)):
                case Evaluated(evaluation, _, built):
                    build_cache.keep(built, kernel.source)
                    return evaluation
            raise self._process.unexpected()
        except LostError as error:
            return self._lost(error, error.outcome)

    def prepare(self, kernel: Kernel) -> Prepared | Evaluation:
        """The kernel built for every shape of the task, or the evaluation of a kernel that can't be built."""
        try:
            match self._ask(Prepare(kernel)):
                case Prepared(candidate, stage_seconds, built):
                    build_cache.keep(built, kernel.source)
                    return Prepared(candidate, stage_seconds)
                case Evaluated(evaluation):
                    return evaluation
            raise self._process.unexpected()
        except LostError as error:
            timeout = error.outcome is Outcome.TIMEOUT
            return self._lost(error, Outcome.TIMEOUT if timeout else Outcome.BUILD_ERROR)

    def fingerprint(self) -> dict[str, str]:
        """The device's fingerprint."""
        try:
            match self._ask(Fingerprint()):
                case Fingerprinted(values):
                    return values
            raise self._process.unexpected()
        except LostError as error:
            raise DeviceError(error.message) from error

    def interrupt(self) -> None:
        """End the process for good, from any thread."""
        self._process.interrupt()

    def close(self) -> None:
        """End the process and everything that it started."""
        self._process.close()

    def _ask(self, request: msgspec.Struct) -> Reply:
        reply = self._process.ask(request, self._limits.seconds, of_processor=True)
        if isinstance(reply, Evaluated) and reply.leaving:
            self._process.renew()
        return reply

    def _opened(self, reply: Reply) -> None:
        if not isinstance(reply, Ready):
            raise self._process.unexpected()

    def _lost(self, error: LostError, outcome: Outcome) -> Evaluation:
        seconds = {"evaluation": self._limits.seconds} if outcome is Outcome.TIMEOUT else {}
        return Evaluation(
            outcome, self._source, error.message, log=error.log, stage_seconds=seconds, guard=error.guard
        )


def compile_worker(spec: DeviceSpec, architecture: str) -> Worker:
    """A worker that builds kernels of the spec's task for an architecture (`sm_90`)."""
    # Compilers get no seed: candidates must not know their inputs.
    spec = replace(spec, architecture=architecture, seed=0)
    return Worker(spec, limits=Limits(BUILD_SECONDS), opener=None)
