"""Kernels judged on one GPU, each in the GPU's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task_file import task_of
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.counters import TIME
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.gpu.protocol import Opened
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.gpu.turn import COUNTING, COUNTING_PATIENCE, Turn
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.stages import Stages


class Evaluator(Protocol):
    """What judges kernels of one task on one GPU. For one thread, besides `interrupt`.

    Whatever is asked raises DeviceError when the GPU is broken or lost.
    """

    def open(self) -> Opened:
        """Get ready; to be called before anything else is asked. Raises TaskError too, for a reference that fails."""
        ...

    @property
    def remark(self) -> str:
        """What disturbs the times of this GPU, in a sentence; empty where nothing is known to."""
        ...

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on, if the GPU takes it."""
        ...

    def evaluate(self, prepared: Prepared) -> Evaluation:
        """Verify, time and count a kernel that was built. To wait for the GPU's turn costs the kernel nothing."""
        ...

    def release_counters(self) -> None:
        """Let other processes count on the GPU until the next kernel, which sets them up again."""
        ...

    def interrupt(self) -> None:
        """Stop for good, from any thread: what is being asked is lost."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class GpuEvaluator:
    """An `Evaluator` whose verdicts are reached in this process.

    `spec.gpu` is the GPU; where it is empty, and the first visible one is meant, opening it waits for no turn.
    """

    def __init__(self, spec: DeviceSpec, metrics: Sequence[str], service: str = GPU_SERVICE) -> None:
        self._spec, self._metrics, self._service = spec, metrics, service
        self._turn = Turn(spec.gpu) if spec.gpu else None
        self._counting = Turn(COUNTING)
        self._judge: GpuJudge | None = None
        self._interrupted = False

    def open(self) -> Opened:
        """Draw the inputs, open the GPU in its turn, and put the inputs there."""
        spec = self._spec
        with self._turn.held() if self._turn is not None else nullcontext():
            self._judge = GpuJudge(
                task_of(spec),
                spec.seed,
                self._metrics,
                self._service,
                spec.gpu,
                counting=self._counting_alone(),
            )
            if self._interrupted:
                self._judge.interrupt()
            opened = self._judge.opened
        if self._turn is None:
            self._turn = Turn(opened.gpu.uuid)
        return opened

    @property
    def remark(self) -> str:
        """Why others may use the GPU meanwhile."""
        return self._turn.remark if self._turn is not None else ""

    @property
    def pid(self) -> int:
        """The number of the process that holds the GPU."""
        return self._opened()[0].pid

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on, if the GPU takes it."""
        judge, turn = self._opened()
        with turn.held():
            judge.use_baseline(candidate)

    def evaluate(self, prepared: Prepared) -> Evaluation:
        """Verify, time and count a kernel that was built."""
        judge, turn = self._opened()
        stages = Stages()
        stages.add(prepared.stage_seconds)
        with turn.held(before_waiting=judge.release_counters):
            evaluation = judge.evaluate(prepared.candidate, stages)
            # Counters are one process's at a time, and would be kept for the next kernel.
            if turn.is_wanted:
                judge.release_counters()
        return evaluation

    def release_counters(self) -> None:
        """Let other processes count on the GPU."""
        self._opened()[0].release_counters()

    def interrupt(self) -> None:
        """End the GPU process for good, and wait for no turn."""
        self._interrupted = True
        self._counting.interrupt()
        if self._turn is not None:
            self._turn.interrupt()
        if self._judge is not None:
            self._judge.interrupt()

    def close(self) -> None:
        """End the GPU process and give the tensors back."""
        if self._judge is not None:
            self._judge.close()
        self._counting.close()
        if self._turn is not None:
            self._turn.close()

    def _counting_alone(self) -> Callable[[], AbstractContextManager[None]]:
        """What counting waits for: the GPU's own clock takes no setting up that others would wait for."""
        if set(self._metrics) <= {TIME}:
            return nullcontext
        return partial(self._counting.held, COUNTING_PATIENCE)

    def _opened(self) -> tuple[GpuJudge, Turn]:
        if self._judge is None or self._turn is None:
            raise RuntimeError("The evaluator isn't open: call `open` first.")
        return self._judge, self._turn
