"""One of several GPUs, whose verdicts are reached in a process of its own, seen from the search.

Threads of one process share its interpreter: while the search thinks, a verdict that is reached beside it waits for
milliseconds at every step, and the GPU with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task import TaskError
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.gpu.evaluator_process import (
    EVALUATOR_REPLIES,
    BaselineUsed,
    EvaluatorBroken,
    EvaluatorReady,
    EvaluatorReply,
    EvaluatorRequest,
    Judge,
    Judged,
    OpenEvaluator,
    TaskRefused,
    UseBaseline,
)
from mctskernel.profiling.gpu.protocol import Done, Opened, ReleaseCounters
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.conversation import Conversation, LostError

UNASKED = "The evaluator's process answered what it wasn't asked."

PATIENCE = math.inf
"""Seconds for an answer. What a kernel may cost is limited in there; for its turn a GPU may be waited for long."""

Expected = TypeVar("Expected")


class EvaluatorApart:
    """An `Evaluator` in a process of its own."""

    def __init__(self, spec: DeviceSpec, metrics: Sequence[str], service: str = GPU_SERVICE) -> None:
        self._ready: EvaluatorReady | None = None
        opening = OpenEvaluator(
            str(spec.task_folder.resolve()),
            spec.language,
            spec.trial,
            spec.seed,
            spec.gpu,
            tuple(metrics),
            service,
        )
        self._process: Conversation[EvaluatorReply] = Conversation(
            "mctskernel.profiling.gpu.evaluator_process",
            "judges kernels",
            opening,
            EVALUATOR_REPLIES,
            self._set_up,
            opening_seconds=PATIENCE,
        )

    def open(self) -> Opened:
        """Wait until the process has opened the GPU."""
        self._process.open()
        if self._ready is None:
            raise DeviceError(UNASKED)
        return self._ready.opened

    @property
    def remark(self) -> str:
        """Why others may use the GPU meanwhile."""
        return self._ready.remark if self._ready is not None else ""

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on, if the GPU takes it."""
        self._ask(UseBaseline(candidate), BaselineUsed)

    def evaluate(self, prepared: Prepared) -> Evaluation:
        """Verify, time and count a kernel that was built."""
        return self._ask(Judge(prepared), Judged).evaluation

    def release_counters(self) -> None:
        """Let other processes count on the GPU."""
        self._ask(ReleaseCounters(), Done)

    def interrupt(self) -> None:
        """End the process for good, and the GPU's with it."""
        self._process.interrupt()

    def close(self) -> None:
        """End the process for good and tidy up."""
        self._process.close()

    def _set_up(self, reply: EvaluatorReply) -> None:
        match reply:
            case EvaluatorReady():
                self._ready = reply
            case TaskRefused(message):
                raise TaskError(message)
            case EvaluatorBroken(message):
                raise DeviceError(message)
            case _:
                raise DeviceError(UNASKED)

    def _ask(self, request: EvaluatorRequest, expected: type[Expected]) -> Expected:
        try:
            reply = self._process.ask(request, PATIENCE)
        except LostError as error:
            # No candidate runs in there: whatever ended it, this GPU isn't driven any more.
            raise DeviceError(f"{error.message} {error.log}".strip()) from error
        if isinstance(reply, expected):
            return reply
        raise DeviceError(reply.message if isinstance(reply, EvaluatorBroken) else UNASKED)
