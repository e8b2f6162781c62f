"""What an evaluator of a cluster does: judge on a CPU, build for a GPU, or judge on one."""

from __future__ import annotations

import importlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Protocol

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.executors.local import LocalExecutor
from mctskernel.executors.ray.assignment import Stage
from mctskernel.executors.ray.messages import (
    FINALISTS,
    KERNELS,
    Built,
    Judged,
    Opening,
    Ready,
    Reply,
    encode,
)
from mctskernel.executors.ray.roster import Role
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.processes.workers import Opener


class Post(Protocol):
    """An evaluator that is open."""

    @property
    def ready(self) -> Ready:
        """What it says first of all."""
        ...

    def answer(self, stage: Stage, data: bytes) -> tuple[Reply, bytes]:
        """The reply, and what was made for the next stage. Raises DeviceError when it is broken."""
        ...

    def interrupt(self) -> None:
        """Give up what is being done, from any thread."""
        ...


def open_post(opening: Opening, spec: DeviceSpec, stack: ExitStack) -> Post:
    """What the opening describes, closed with the stack. Raises TaskError and DeviceError."""
    match Role(opening.role):
        case Role.COMPILER:
            return Compiling(stack.enter_context(closing(Compiler(spec, opening.target))))
        case Role.EVALUATOR:
            opener = _opener(opening.opener)
            return OnCpu(stack.enter_context(LocalExecutor(spec, opener=opener)))
        case Role.JUDGE:
            # Imported here: it needs the driver's bindings, which a node without a GPU may lack.
            from mctskernel.executors.ray.gpu_post import open_on_gpu  # noqa: PLC0415 - as said above

            return open_on_gpu(spec, opening, stack)


@dataclass(frozen=True)
class OnCpu:
    """Judges kernels start to end, as one worker of one machine does."""

    executor: LocalExecutor

    @property
    def ready(self) -> Ready:
        """With what a worker of one machine says."""
        return Ready(self.executor.fingerprint())

    def answer(self, stage: Stage, data: bytes) -> tuple[Reply, bytes]:
        """Judged."""
        if stage is Stage.GATE:
            found = FINALISTS.decode(data)
            return Judged(self.executor.last_gate(found.kernel, found.baseline)), b""
        self.executor.submit(0, KERNELS.decode(data))
        ((_, evaluation),) = self.executor.wait()
        return Judged(evaluation), b""

    def interrupt(self) -> None:
        """End the processes."""
        self.executor.close()


@dataclass(frozen=True)
class Compiling:
    """Builds kernels for those that hold a GPU."""

    compiler: Compiler

    @property
    def ready(self) -> Ready:
        """What it builds for it was told."""
        return Ready({})

    def answer(self, stage: Stage, data: bytes) -> tuple[Reply, bytes]:  # noqa: ARG002 - it does one thing
        """Built with the candidate, or Judged for a kernel that is judged no further."""
        found = self.compiler.prepare(KERNELS.decode(data))
        return (Judged(found), b"") if isinstance(found, Evaluation) else (Built(), encode(found))

    def interrupt(self) -> None:
        """End the process."""
        self.compiler.interrupt()


def _opener(name: str) -> Opener:
    module, _, function = name.partition(":")
    found: Opener = getattr(importlib.import_module(module), function)
    return found
