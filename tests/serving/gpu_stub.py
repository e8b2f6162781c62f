"""An executor that lacks nothing but the GPU."""

from __future__ import annotations

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import ExecutorOptions
from mctskernel.executors.gpu import GpuExecutor


def open_fake_gpu(spec: DeviceSpec, workers: int, options: ExecutorOptions) -> GpuExecutor:
    """Opens one without the last gate's checks, which need more than a GPU process."""
    return GpuExecutor(spec, workers=workers, service="tests.executors.fake_gpu:FakeGpu", gate_checks=())
