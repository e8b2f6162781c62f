"""Evaluations in a Ray cluster: an actor for each GPU, or for each CPU of the model, which come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions


@contextmanager
def open_ray_executor(
    spec: DeviceSpec, workers: int = 0, options: ExecutorOptions = LOCAL
) -> Iterator[Executor]:
    """Evaluate kernels in the cluster at the address of the options.

    An empty address is that of RAY_ADDRESS or `ray start`. `workers` are actors on `model`, and compile processes
    beside each GPU on `gpu`; 0 is as many as there is room for. Raises TaskError and DeviceError.
    """
    try:
        import ray  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise DeviceError("Ray is not installed here: pip install 'mctskernel[ray]'.") from error
    from mctskernel.executors.ray.cluster import connected  # noqa: PLC0415 - needs the extra
    from mctskernel.executors.ray.executor import RayExecutor  # noqa: PLC0415 - needs the extra

    with (
        connected(options.address) as cluster,
        RayExecutor(spec, cluster, workers=workers, counters=options.counters) as executor,
    ):
        yield executor
