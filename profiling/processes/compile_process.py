"""The compile process: guards and builds the kernels that its parent sends. It never sees a GPU.

Run as `python -m mctskernel.profiling.processes.compile_process SOCKET LIFELINE`. Compilers read hostile text, so they
run where a crash, an endless template or a full memory costs one candidate.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import task_of
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes.child_service import serve
from mctskernel.profiling.stages import Stages

PROGRAMS = 8
"""How many compilers and disassemblers may run at a time."""


class OpenCompiler(msgspec.Struct, tag=True, frozen=True):
    """The first request. Answered by CompilerReady or CompilerBroken."""

    task_folder: str
    language: Language
    trial: Trial
    architecture: str
    memory_bytes: int


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Guard and build a kernel for every shape of the task. Answered by Prepared or Refused."""

    kernel: Kernel


class CompilerReady(msgspec.Struct, tag=True, frozen=True):
    """The task is loaded."""


class Prepared(msgspec.Struct, tag=True, frozen=True):
    """The kernel was built."""

    candidate: Candidate
    stage_seconds: dict[str, float]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The kernel can't be judged any further. `leaving` says that the process ends now."""

    evaluation: Evaluation
    leaving: bool = False


class CompilerBroken(msgspec.Struct, tag=True, frozen=True):
    """Nothing can be built on this machine."""

    message: str


CompileRequest = OpenCompiler | Prepare
CompileReply = CompilerReady | Prepared | Refused | CompilerBroken

COMPILE_REQUESTS: msgspec.msgpack.Decoder[CompileRequest] = msgspec.msgpack.Decoder(CompileRequest)
COMPILE_REPLIES: msgspec.msgpack.Decoder[CompileReply] = msgspec.msgpack.Decoder(CompileReply)


def confinement(request: OpenCompiler, scratch: Path) -> Confinement:
    """What compiling for a task takes: ptxas and nvdisasm are programs of their own."""
    return Confinement(
        scratch=scratch,
        reads=(Path(request.task_folder),),
        processes=PROGRAMS,
        memory_bytes=request.memory_bytes,
    )


class CompileService:
    """Answers for one task and one architecture."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._architecture = ""

    def answer(self, request: CompileRequest) -> tuple[CompileReply, bool]:
        """The reply, and whether the process is of no use any more."""
        if isinstance(request, OpenCompiler):
            reply = self._open(request)
        elif self._task is None:
            reply = CompilerBroken("No task is loaded.")
        else:
            reply = self._prepare(self._task, request.kernel)
        return reply, isinstance(reply, CompilerBroken) or (isinstance(reply, Refused) and reply.leaving)

    def _open(self, request: OpenCompiler) -> CompileReply:
        try:
            spec = DeviceSpec(
                "gpu", Path(request.task_folder), language=request.language, trial=request.trial
            )
            self._task = task_of(spec)
        except TaskError as error:
            return CompilerBroken(str(error))
        self._architecture = request.architecture
        confine(confinement(request, Path.cwd()))
        return CompilerReady()

    def _prepare(self, task: Task, kernel: Kernel) -> CompileReply:
        stages = Stages()
        try:
            return Prepared(prepare(task, kernel, self._architecture, stages), stages.seconds)
        except RefusedError as refusal:
            return Refused(replace(refusal.evaluation(Source.MEASURED), stage_seconds=stages.seconds))
        except DeviceError as error:
            return CompilerBroken(str(error))
        except MemoryError:
            message = "The compiler needed more memory than it may have."
            evaluation = Evaluation(Outcome.BUILD_ERROR, Source.MEASURED, message, guard=Guard.MEMORY_LIMIT)
            return Refused(evaluation, leaving=True)
        except Exception as error:  # noqa: BLE001 - one candidate that trips over a defect here costs one node
            message = f"The compiler itself failed: {type(error).__name__}: {error}"
            evaluation = Evaluation(
                Outcome.CRASH,
                Source.MEASURED,
                message,
                log=traceback.format_exc(),
                guard=Guard.SEPARATE_PROCESS,
            )
            return Refused(evaluation, leaving=True)


if __name__ == "__main__":
    serve(COMPILE_REQUESTS, CompileService().answer)
