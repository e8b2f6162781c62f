"""The child process of a `Worker`: builds kernels, and evaluates them where it holds a device.

Run as `python -m mctskernel.profiling.processes.worker_process SOCKET LIFELINE`, two inherited file descriptors.
Compilers read hostile text, so they run where a crash, an endless template or a full memory costs one candidate.
"""

from __future__ import annotations

import gc
import importlib
import traceback
from dataclasses import replace
from pathlib import Path

import msgspec

from mctskernel.core.device import Device, DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import task_of
from mctskernel.profiling import build_cache
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes.channel import Broken, Ready, decode_path, serve
from mctskernel.profiling.stages import Stages, note_stages_in

PROGRAMS = 8  # how many compilers and disassemblers may run at a time


class Open(msgspec.Struct, tag=True, frozen=True):
    """Open a device by `opener` (`module:function`), or only build for `spec`. Answered by Ready or Broken."""

    spec: DeviceSpec
    opener: str
    memory_bytes: int


class Evaluate(msgspec.Struct, tag=True, frozen=True):
    """Evaluate a kernel. Answered by Evaluated."""

    kernel: Kernel


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Check and build a kernel for every shape of the task. Answered by Prepared, or Evaluated if that fails."""

    kernel: Kernel


class Fingerprint(msgspec.Struct, tag=True, frozen=True):
    """Answered by Fingerprinted."""


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """An evaluation; `leaving` if the process ends now. `built` is for the parent's cache of builds."""

    evaluation: Evaluation
    leaving: bool = False
    built: tuple[build_cache.Entry, ...] = ()


class Prepared(msgspec.Struct, tag=True, frozen=True):
    """The kernel was built."""

    candidate: Candidate
    stage_seconds: dict[str, float]
    built: tuple[build_cache.Entry, ...] = ()


class Fingerprinted(msgspec.Struct, tag=True, frozen=True):
    """The device's fingerprint."""

    values: dict[str, str]


Request = Open | Evaluate | Prepare | Fingerprint
Reply = Ready | Evaluated | Prepared | Fingerprinted | Broken

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request, dec_hook=decode_path)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def confinement(request: Open, scratch: Path) -> Confinement:
    """What building and emulating a kernel needs: ptxas and nvdisasm are programs of their own."""
    return Confinement(
        scratch=scratch,
        reads=(request.spec.task_folder, *build_cache.create_folder()),
        processes=PROGRAMS,
        memory_bytes=request.memory_bytes,
    )


class WorkerService:
    """Answers for one task and one device."""

    def __init__(self) -> None:
        self._opened: Open | None = None
        self._device: Device | None = None
        self._task: Task | None = None

    def answer(self, request: Request) -> tuple[Reply, bool]:
        """The reply, and whether the process must end after sending it."""
        try:
            reply = self._reply(request)
        except (DeviceError, TaskError) as error:
            reply = Broken(str(error))
        return reply, isinstance(reply, Broken) or (isinstance(reply, Evaluated) and reply.leaving)

    def _reply(self, request: Request) -> Reply:
        match request:
            case Open() if self._opened is None:
                return self._open(request)
            case Evaluate(kernel) if self._device is not None:
                return self._evaluate(self._device, kernel)
            case Prepare(kernel) if self._task is not None:
                return self._prepare(self._task, kernel)
            case Fingerprint() if self._device is not None:
                return Fingerprinted(self._device.fingerprint())
        return Broken("The worker got a request that doesn't fit what it has open.")

    def _open(self, request: Open) -> Ready:
        """Open what is requested, then confine this process for good."""
        build_cache.collect()
        if request.spec.trial is not Trial.SEARCH:
            # The final validation builds anew, in a process that has run no other candidate.
            build_cache.disable()
        if request.opener:
            module, _, name = request.opener.partition(":")
            gc.disable()
            self._device = getattr(importlib.import_module(module), name)(request.spec)
            # What was imported stays: no garbage collection needs to look through it.
            gc.freeze()
            gc.enable()
        else:
            self._task = task_of(request.spec)
        confine(confinement(request, Path.cwd()))
        note_stages_in(Path.cwd())
        self._opened = request
        return Ready()

    def _evaluate(self, device: Device, kernel: Kernel) -> Evaluated:
        try:
            return Evaluated(device.evaluate(kernel), built=build_cache.take_collected())
        except (DeviceError, TaskError):
            raise
        except Exception as error:  # noqa: BLE001 - a candidate that triggers a defect here costs one node
            return self._failed(error, "evaluation")

    def _prepare(self, task: Task, kernel: Kernel) -> Reply:
        assert self._opened is not None  # noqa: S101 - a task is loaded
        spec, stages = self._opened.spec, Stages()
        try:
            candidate = prepare(task, kernel, spec.architecture, stages)
            return Prepared(candidate, stages.seconds, build_cache.take_collected())
        except RefusedError as refusal:
            return Evaluated(replace(refusal.evaluation(spec.source), stage_seconds=stages.seconds))
        except DeviceError:
            raise
        except Exception as error:  # noqa: BLE001 - a candidate that triggers a defect here costs one node
            return self._failed(error, "build")

    def _failed(self, error: Exception, what: str) -> Evaluated:
        assert self._opened is not None  # noqa: S101 - only an open worker evaluates
        source = self._opened.spec.source
        if isinstance(error, MemoryError):
            limit = self._opened.memory_bytes >> 20
            message = f"The {what} needed more than its limit of {limit} MiB of memory."
            outcome = Outcome.BUILD_ERROR
            if what != "build":  # in the emulator: it says nothing about the kernel
                outcome, message = Outcome.UNVERIFIABLE, f"It can't be verified here. {message}"
            return Evaluated(Evaluation(outcome, source, message, guard=Guard.MEMORY_LIMIT), leaving=True)
        message = f"The {what} itself failed: {type(error).__name__}: {error}"
        evaluation = Evaluation(
            Outcome.CRASH, source, message, log=traceback.format_exc(), guard=Guard.SEPARATE_PROCESS
        )
        return Evaluated(evaluation, leaving=True)


if __name__ == "__main__":
    serve(REQUESTS, WorkerService().answer)
