"""Predictions in processes beside those that evaluate, each killed when a kernel takes it too long."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction
from mctskernel.executors.local import LocalExecutor
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.profiling.processes.workers import Limits, Opener
from mctskernel.profiling.surrogate import open_pricing_device, prediction_of

LIMITS = Limits(seconds=8.0, memory_bytes=4 << 30)
"""A prediction that takes longer than most evaluations isn't worth waiting for."""


class ModelSurrogate:
    """`workers` processes that price kernels for the GPU that `spec.architecture` names.

    Use it as a context manager, or call `close`. Not shared between threads. Whatever a kernel does to its process
    costs one prediction.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        limits: Limits = LIMITS,
        opener: Opener = open_pricing_device,
    ) -> None:
        self._executor = LocalExecutor(spec, workers=workers, limits=limits, opener=opener)

    @property
    def capacity(self) -> int:
        """How many predictions can be in flight without one waiting for another."""
        return self._executor.capacity

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin a prediction. `ticket`, not in flight already, comes back with its result."""
        self._executor.submit(ticket, kernel)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        """The predictions that have finished since the last call, waiting for the first of them.

        Raises DeviceError on a machine that can't predict at all.
        """
        return [(ticket, prediction_of(found)) for ticket, found in self._executor.wait(timeout)]

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """`log_ratio_sigma` of the model."""
        return log_ratio_sigma(first.terms, second.terms)

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
