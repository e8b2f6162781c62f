"""Who does the evaluations."""

from __future__ import annotations

from mctskernel.core.device import DeviceSpec
from mctskernel.executors.local import LocalExecutor


def open_executor(spec: DeviceSpec, workers: int = 1) -> LocalExecutor:
    """What evaluates kernels on the described device, `workers` of them at a time. Use it as a context manager."""
    return LocalExecutor(spec, workers=workers)
