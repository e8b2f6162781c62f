"""The process in which the verdicts of one of several GPUs are reached, so that they wait for nobody's Python.

Run as `python -m mctskernel.profiling.gpu.evaluator_process SOCKET LIFELINE`. It is a part of the search, which trusts
it: it knows seeds and expected outputs, and starts the process that holds the GPU, which doesn't.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.gpu.protocol import Done, Opened, ReleaseCounters
from mctskernel.profiling.processes.child_service import serve
from mctskernel.profiling.processes.compile_process import Prepared


class OpenEvaluator(msgspec.Struct, tag=True, frozen=True):
    """The first request. Answered by EvaluatorReady, TaskRefused or EvaluatorBroken."""

    task_folder: str
    language: Language
    trial: Trial
    seed: int
    gpu: str
    metrics: tuple[str, ...]
    service: str


class UseBaseline(msgspec.Struct, tag=True, frozen=True):
    """Interleave timings with this kernel. Answered by BaselineUsed or EvaluatorBroken."""

    candidate: Candidate


class Judge(msgspec.Struct, tag=True, frozen=True):
    """Judge a kernel. Answered by Judged or EvaluatorBroken."""

    prepared: Prepared


class EvaluatorReady(msgspec.Struct, tag=True, frozen=True):
    """The GPU is open."""

    opened: Opened
    remark: str


class TaskRefused(msgspec.Struct, tag=True, frozen=True):
    """The task can't be used: its reference fails."""

    message: str


class EvaluatorBroken(msgspec.Struct, tag=True, frozen=True):
    """The GPU can't be used, or no more."""

    message: str


class BaselineUsed(msgspec.Struct, tag=True, frozen=True):
    """The answer to UseBaseline."""


class Judged(msgspec.Struct, tag=True, frozen=True):
    """The answer to Judge."""

    evaluation: Evaluation


EvaluatorRequest = OpenEvaluator | UseBaseline | Judge | ReleaseCounters
EvaluatorReply = EvaluatorReady | TaskRefused | EvaluatorBroken | BaselineUsed | Judged | Done

EVALUATOR_REQUESTS: msgspec.msgpack.Decoder[EvaluatorRequest] = msgspec.msgpack.Decoder(EvaluatorRequest)
EVALUATOR_REPLIES: msgspec.msgpack.Decoder[EvaluatorReply] = msgspec.msgpack.Decoder(EvaluatorReply)


class EvaluatorService:
    """Answers for one GPU and one task."""

    def __init__(self) -> None:
        self._evaluator: GpuEvaluator | None = None

    def answer(self, request: EvaluatorRequest) -> tuple[EvaluatorReply, bool]:
        """The reply, and whether the process is of no use any more."""
        try:
            reply = self._reply(request)
        except TaskError as error:
            reply = TaskRefused(str(error))
        except DeviceError as error:
            reply = EvaluatorBroken(str(error))
        return reply, isinstance(reply, TaskRefused | EvaluatorBroken)

    def _reply(self, request: EvaluatorRequest) -> EvaluatorReply:
        if isinstance(request, OpenEvaluator):
            return self._open(request)
        if self._evaluator is None:
            return EvaluatorBroken("No GPU is open.")
        if isinstance(request, Judge):
            return Judged(self._evaluator.evaluate(request.prepared))
        if isinstance(request, ReleaseCounters):
            self._evaluator.release_counters()
            return Done()
        self._evaluator.use_baseline(request.candidate)
        return BaselineUsed()

    def _open(self, request: OpenEvaluator) -> EvaluatorReady:
        spec = DeviceSpec(
            "gpu",
            Path(request.task_folder),
            seed=request.seed,
            language=request.language,
            trial=request.trial,
            gpu=request.gpu,
        )
        evaluator = self._evaluator = GpuEvaluator(spec, request.metrics, request.service)
        opened = evaluator.open()
        return EvaluatorReady(opened, evaluator.remark)


if __name__ == "__main__":
    serve(EVALUATOR_REQUESTS, EvaluatorService().answer)
