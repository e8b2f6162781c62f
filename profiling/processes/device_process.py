"""The process that holds a device: it opens one and judges the kernels that its parent sends, until it is killed.

Run as `python -m mctskernel.profiling.processes.device_process SOCKET LIFELINE`, two inherited file descriptors.
"""

from __future__ import annotations

import gc
import importlib
import traceback
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.device import Device, DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes.child_service import serve
from mctskernel.profiling.processes.device_protocol import (
    REQUESTS,
    Broken,
    Evaluate,
    Evaluated,
    Fingerprint,
    Fingerprinted,
    Open,
    Ready,
    Reply,
    Request,
)
from mctskernel.profiling.stages import note_stages_in

PROGRAMS = 8
"""How many compilers and disassemblers may run at a time."""


@dataclass
class Judge:
    """Answers for one device, once it is open."""

    device: Device | None = None
    opened: Open | None = None

    def answer(self, request: Request) -> tuple[Reply, bool]:
        """The reply, and whether the process is of no use any more."""
        reply = self._open(request) if isinstance(request, Open) else self._answer(request)
        leaving = isinstance(reply, Broken) or (isinstance(reply, Evaluated) and reply.leaving)
        return reply, leaving

    def _open(self, request: Open) -> Reply:
        try:
            self.device, self.opened = open_confined(request), request
        except (TaskError, DeviceError) as error:
            return Broken(str(error))
        return Ready()

    def _answer(self, request: Request) -> Reply:
        if self.device is None or self.opened is None:
            return Broken("No device is open.")
        try:
            match request:
                case Evaluate(kernel):
                    return _evaluated(self.device, kernel, self.opened)
                case Fingerprint():
                    return Fingerprinted(self.device.fingerprint())
                case _:
                    return Broken("The device is open already.")
        except (DeviceError, TaskError) as error:
            return Broken(str(error))


def confinement(request: Open, scratch: Path) -> Confinement:
    """What judging on a device without hardware takes: it compiles and disassembles too."""
    return Confinement(
        scratch=scratch,
        reads=(Path(request.task_folder),),
        processes=PROGRAMS,
        memory_bytes=request.memory_bytes,
    )


def open_confined(request: Open) -> Device:
    """Open the requested device, then confine this process for good."""
    module, _, name = request.opener.partition(":")
    gc.disable()
    device: Device = getattr(importlib.import_module(module), name)(request.spec)
    # What was imported stays: no collection of garbage need look through it, now or later.
    gc.freeze()
    gc.enable()
    confine(confinement(request, Path.cwd()))
    note_stages_in(Path.cwd())
    return device


def _evaluated(device: Device, kernel: Kernel, opened: Open) -> Evaluated:
    try:
        return Evaluated(device.evaluate(kernel))
    except (DeviceError, TaskError):
        raise
    except MemoryError:
        message = f"The evaluation needed more than its limit of {opened.memory_bytes >> 20} MiB of memory."
        evaluation = Evaluation(Outcome.CRASH, opened.spec.source, message, guard=Guard.MEMORY_LIMIT)
        return Evaluated(evaluation, leaving=True)
    except Exception as error:  # noqa: BLE001 - one candidate that trips over a defect here costs one node
        message = f"The evaluator itself failed: {type(error).__name__}: {error}"
        evaluation = Evaluation(
            Outcome.CRASH,
            opened.spec.source,
            message,
            log=traceback.format_exc(),
            guard=Guard.SEPARATE_PROCESS,
        )
        return Evaluated(evaluation, leaving=True)


if __name__ == "__main__":
    serve(REQUESTS, Judge().answer)
