"""Who does the evaluations."""

from __future__ import annotations

from contextlib import AbstractContextManager

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Executor
from mctskernel.executors.local import LocalExecutor


def open_executor(spec: DeviceSpec, workers: int = 1) -> AbstractContextManager[Executor]:
    """What evaluates kernels on the described device; use it as a context manager.

    `workers` are evaluations at a time on `model`, and processes that compile for the one that holds the GPU on `gpu`.
    """
    if spec.kind == "gpu":
        # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
        from mctskernel.executors.gpu import GpuExecutor  # noqa: PLC0415 - as said above

        return GpuExecutor(spec, workers=workers)
    return LocalExecutor(spec, workers=workers)
