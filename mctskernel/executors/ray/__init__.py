"""Evaluations in a Ray cluster: its GPUs judge, its CPUs build, and both come and go while a search runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions


@contextmanager
def open_ray_executor(
    spec: DeviceSpec, workers: int = 0, options: ExecutorOptions = LOCAL
) -> Iterator[Executor]:
    """What evaluates kernels in the cluster at the address of the options.

    An empty address is that which RAY_ADDRESS or `ray start` gives, or a new cluster on this machine, which ends with
    the executor. `workers` are evaluations at a time on `model`, and processes that build for the GPUs on `gpu`; 0 is
    as many as the cluster has room for. Raises TaskError and DeviceError.
    """
    try:
        import ray  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise DeviceError("Ray is not installed here: pip install 'mctskernel[ray]'.") from error
    from mctskernel.executors.ray.cluster import connected  # noqa: PLC0415 - needs the extra
    from mctskernel.executors.ray.executor import RayExecutor  # noqa: PLC0415 - needs the extra

    with (
        connected(options.address, max(workers, os.cpu_count() or 1)) as cluster,
        RayExecutor(spec, cluster, workers=workers, counters=options.counters) as executor,
    ):
        yield executor
