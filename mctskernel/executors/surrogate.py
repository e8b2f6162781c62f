"""Predictions in processes beside those that evaluate, each killed when a kernel takes it too long."""

from __future__ import annotations

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.executors.local import LocalExecutor
from mctskernel.executors.tickets import Closing
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.pricing import open_pricing_device, prediction_of
from mctskernel.profiling.processes.worker import Limits, Opener

LIMITS = Limits(seconds=8.0, memory_bytes=4 << 30)
"""A prediction should not take longer than an evaluation."""


class ModelSurrogate(Closing):
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
