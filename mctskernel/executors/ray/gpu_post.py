"""An evaluator that holds a GPU of the cluster: the one that Ray shows to its process."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.task_file import task_of
from mctskernel.executors.gpu import judge_at_last_gate
from mctskernel.executors.ray.assignment import Stage
from mctskernel.executors.ray.messages import CANDIDATES, FINALISTS, Judged, Opening, Ready, Reply
from mctskernel.profiling.counter_sets import METRICS
from mctskernel.profiling.gpu.cuda_driver import visible_gpus
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.gpu.protocol import Opened
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.versions import package_versions


@dataclass(frozen=True)
class OnGpu:
    """Judges what was built elsewhere, in the GPU's turn."""

    spec: DeviceSpec
    service: str
    metrics: tuple[str, ...]
    evaluator: GpuEvaluator
    opened: Opened

    @property
    def ready(self) -> Ready:
        """With the fingerprint of a GPU without its UUID: a run in a cluster may use any GPU of the kind."""
        gpu = self.opened.gpu
        fingerprint = {
            "device": "gpu",
            "gpu": gpu.name,
            "driver": gpu.driver,
            "architecture": gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings", "triton"),
        }
        disturbed = (self.evaluator.remark,) if self.evaluator.remark else ()
        return Ready(fingerprint, (*self.opened.remarks, *disturbed))

    def answer(self, stage: Stage, data: bytes) -> tuple[Reply, bytes]:
        """Judged."""
        if stage is Stage.GATE:
            self.evaluator.release_counters()
            found = FINALISTS.decode(data)
            spec = replace(self.spec, gpu=self.opened.gpu.uuid)
            evaluation = judge_at_last_gate(
                spec, found.kernel, found.baseline, metrics=self.metrics, service=self.service
            )
            return Judged(evaluation), b""
        return Judged(self.evaluator.evaluate(CANDIDATES.decode(data))), b""

    def interrupt(self) -> None:
        """End the GPU process."""
        self.evaluator.interrupt()


def open_on_gpu(spec: DeviceSpec, opening: Opening, stack: ExitStack) -> OnGpu:
    """Hold the first GPU that this process sees, with the task's baseline on it. Raises TaskError and DeviceError."""
    with suppress(DeviceError):
        spec = replace(spec, gpu=visible_gpus()[0].uuid)
    metrics = METRICS[opening.counters]
    evaluator = GpuEvaluator(spec, metrics, opening.service)
    stack.callback(evaluator.close)
    opened = evaluator.open()
    with closing(Compiler(spec, opened.gpu.architecture)) as compiler:
        built = compiler.prepare(task_of(spec).starting_kernel)
    # Where it can't be built, times are interleaved with the candidate's own; its evaluation tells why.
    if isinstance(built, Prepared):
        evaluator.use_baseline(built.candidate)
    return OnGpu(spec, opening.service, metrics, evaluator, opened)
