"""A process that judges kernels on a device of its own: what a kernel does to it costs one evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from mctskernel.core.device import Device, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.processes.conversation import Conversation, LostError
from mctskernel.profiling.processes.device_process import confinement
from mctskernel.profiling.processes.device_protocol import (
    REPLIES,
    Broken,
    Evaluate,
    Evaluated,
    Fingerprint,
    Fingerprinted,
    Open,
    Ready,
    Reply,
)

Opener = Callable[[DeviceSpec], Device]

Expected = TypeVar("Expected")


@dataclass(frozen=True)
class Limits:
    """What one candidate may cost: seconds from the start of its evaluation, and bytes of memory.

    `opening_seconds` is how long a worker may take to open its device.
    """

    seconds: float = 30.0
    memory_bytes: int = 6 << 30
    opening_seconds: float = 180.0


class Worker:
    """One process, replaced when it dies. For one thread, besides `interrupt`.

    `opener`, a function of an importable module, opens the device inside the process. Whatever is asked raises
    DeviceError when the device can't be opened, or turns out to be broken.
    """

    def __init__(
        self, spec: DeviceSpec, *, limits: Limits | None = None, opener: Opener = open_device
    ) -> None:
        self._source = spec.source
        self._limits = limits or Limits()
        opening = Open(
            spec.kind,
            str(spec.task_folder.resolve()),
            spec.architecture,
            spec.seed,
            f"{opener.__module__}:{opener.__qualname__}",
            self._limits.memory_bytes,
            spec.language,
            spec.trial,
        )
        self._process: Conversation[Reply] = Conversation(
            "mctskernel.profiling.processes.device_process",
            "judged the kernel",
            opening,
            REPLIES,
            _check_ready,
            policy=partial(confinement, opening),
            opening_seconds=self._limits.opening_seconds,
        )

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._process.pid

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """What the device says of a kernel; a crash or a timeout of the process is the kernel's."""
        try:
            reply = self._ask(Evaluate(kernel), Evaluated)
        except LostError as error:
            seconds = {"evaluation": self._limits.seconds} if error.outcome is Outcome.TIMEOUT else {}
            return Evaluation(
                error.outcome,
                self._source,
                error.message,
                log=error.log,
                stage_seconds=seconds,
                guard=error.guard,
            )
        if reply.leaving:
            self._process.renew()
        return reply.evaluation

    def fingerprint(self) -> dict[str, str]:
        """The device's fingerprint."""
        try:
            return self._ask(Fingerprint(), Fingerprinted).values
        except LostError as error:
            raise DeviceError(error.message) from error

    def interrupt(self) -> None:
        """End the process for good, from any thread."""
        self._process.interrupt()

    def close(self) -> None:
        """End the process and everything that it started."""
        self._process.close()

    def _ask(self, request: msgspec.Struct, expected: type[Expected]) -> Expected:
        reply = self._process.ask(request, self._limits.seconds)
        if isinstance(reply, expected):
            return reply
        if isinstance(reply, Broken):
            raise DeviceError(reply.message)
        self._process.renew()
        raise LostError(Outcome.CRASH, "The worker answered what it wasn't asked.")


def _check_ready(reply: Reply) -> None:
    if isinstance(reply, Broken):
        raise DeviceError(reply.message)
    if not isinstance(reply, Ready):
        raise LostError(Outcome.CRASH, "The worker answered what it wasn't asked.")
