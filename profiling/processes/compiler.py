"""A process that builds kernels for a task, seen from its parent."""

from __future__ import annotations

from functools import partial

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.processes.compile_process import (
    COMPILE_REPLIES,
    CompilerBroken,
    CompileReply,
    CompilerReady,
    OpenCompiler,
    Prepare,
    Prepared,
    Refused,
    confinement,
)
from mctskernel.profiling.processes.conversation import Conversation, LostError

BUILD_SECONDS = 20.0
"""Few kernels take a second. One that takes this long would hold up a search more than it could be worth."""
MEMORY_BYTES = 6 << 30


class Compiler:
    """Guards and builds kernels, one at a time, in a process of its own. For one thread, besides `interrupt`.

    `spec` is the device that they are for, `architecture` what is built for (`sm_90a`).
    """

    def __init__(self, spec: DeviceSpec, architecture: str) -> None:
        folder = str(spec.task_folder.resolve())
        opening = OpenCompiler(folder, spec.language, spec.trial, architecture, MEMORY_BYTES)
        self._process: Conversation[CompileReply] = Conversation(
            "mctskernel.profiling.processes.compile_process",
            "compiled the kernel",
            opening,
            COMPILE_REPLIES,
            _check_ready,
            policy=partial(confinement, opening),
        )

    def prepare(self, kernel: Kernel) -> Prepared | Evaluation:
        """The kernel built for every shape of the task, or why it is not judged any further."""
        try:
            reply = self._process.ask(Prepare(kernel), BUILD_SECONDS)
        except LostError as error:
            outcome = Outcome.TIMEOUT if error.outcome is Outcome.TIMEOUT else Outcome.BUILD_ERROR
            return Evaluation(outcome, Source.MEASURED, error.message, log=error.log, guard=error.guard)
        match reply:
            case Prepared():
                return reply
            case Refused(evaluation, leaving):
                if leaving:
                    self._process.renew()
                return evaluation
            case CompilerBroken(message):
                raise DeviceError(message)
            case _:
                raise DeviceError("The compile process answered what it wasn't asked.")

    def interrupt(self) -> None:
        """End the process for good, from any thread."""
        self._process.interrupt()

    def close(self) -> None:
        """End the process for good and tidy up."""
        self._process.close()


def _check_ready(reply: CompileReply) -> None:
    if isinstance(reply, CompilerBroken):
        raise DeviceError(reply.message)
    if not isinstance(reply, CompilerReady):
        raise LostError(Outcome.CRASH, "The compile process answered what it wasn't asked.")
