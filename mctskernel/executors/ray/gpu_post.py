"""An evaluator that holds a GPU of the cluster: the one that Ray shows to its process."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.task_file import task_of
from mctskernel.executors.ray.assignment import Stage
from mctskernel.executors.ray.messages import CANDIDATES, Judged, Ready, Reply
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.versions import package_versions


@dataclass(frozen=True)
class OnGpu:
    """Judges what was built elsewhere."""

    spec: DeviceSpec
    service: str
    judge: GpuJudge

    @property
    def ready(self) -> Ready:
        """With what has to be the same of every GPU of a run."""
        opened = self.judge.opened
        gpu = opened.gpu
        kind = {
            "device": "gpu",
            "gpu": gpu.name,
            "driver": gpu.driver,
            "architecture": gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings", "triton"),
        }
        return Ready({**kind, "uuid": gpu.uuid}, kind, (opened.counters,) if opened.counters else ())

    def answer(self, stage: Stage, data: bytes) -> tuple[Reply, bytes]:
        """Judged."""
        if stage is Stage.GATE:
            raise DeviceError("This version can't pass a last gate in a Ray cluster yet.")
        prepared = CANDIDATES.decode(data)
        stages = Stages()
        stages.add(prepared.stage_seconds)
        return Judged(self.judge.evaluate(prepared.candidate, stages)), b""

    def interrupt(self) -> None:
        """End the GPU process."""
        self.judge.interrupt()


def open_on_gpu(spec: DeviceSpec, service: str, stack: ExitStack) -> OnGpu:
    """Hold the first GPU that this process sees, with the task's baseline on it. Raises TaskError and DeviceError."""
    task = task_of(spec)
    judge = stack.enter_context(closing(GpuJudge(task, spec.seed, DEFAULT_METRICS, service)))
    with closing(Compiler(spec, judge.opened.gpu.architecture)) as compiler:
        prepared = compiler.prepare(task.starting_kernel)
    # Where it can't be built, times are interleaved with the candidate's own; its evaluation tells why.
    if isinstance(prepared, Prepared):
        judge.use_baseline(prepared.candidate)
    return OnGpu(spec, service, judge)
