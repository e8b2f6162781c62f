"""What evaluates kernels: processes of this machine, its GPUs, a Ray cluster, or a recorded search space."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.registry import find

Opener = Callable[..., AbstractContextManager[Executor]]
"""Opens a device with a number of workers and ExecutorOptions, and a GPU with what is likely to be evaluated."""

GPU_COMPILERS, MORE_COMPILERS = 8, 4
"""Processes that compile for the one that holds a GPU, and for each further one. Tensor-core kernels take seconds."""


def open_executor(
    spec: DeviceSpec,
    workers: int = 1,
    options: ExecutorOptions = LOCAL,
    likely: Callable[[int], Iterable[Kernel]] | None = None,
) -> AbstractContextManager[Executor]:
    """Open what evaluates kernels on the described device; use it as a context manager.

    `workers` are evaluations at a time on `model` and `recorded`, and processes that compile for those that hold the
    GPUs on `gpu`. 0 is as many as there is room for. While GPUs are opened so many kernels that are `likely` to be
    evaluated are built. A registered device is opened by a call with the first three arguments.
    Raises TaskError, SpaceError, DeviceError and RegistryError.
    """
    if options.engine == "ray":
        # Imported here: it imports every device.
        from mctskernel.executors.ray import open_ray_executor  # noqa: PLC0415 - as said above

        return open_ray_executor(spec, workers, options)
    open_on: Opener = find("device", spec.kind)
    ahead = (likely,) if spec.kind == "gpu" else ()
    return open_on(spec, workers or workers_on(spec.kind, options), options, *ahead)


def opening_ahead(device: str, options: ExecutorOptions = LOCAL) -> AbstractContextManager[None]:
    """Begin to open GPUs for `open_executor` in this block, beside other work; nothing on other devices."""
    if device == "gpu" and options.engine != "ray":
        from mctskernel.executors.gpu import gpus_ahead  # noqa: PLC0415 - as above

        with suppress(DeviceError):  # which is reported when they are opened for use
            return gpus_ahead(options)
    return nullcontext()


def workers_on(device: str, executor: ExecutorOptions = LOCAL) -> int:
    """The default number of workers on a device: one for each core that this process may use.

    GPUs get at most `GPU_COMPILERS` and `MORE_COMPILERS`; a search-space cache gets one, since more would only decide
    before results are known. In a cluster it is 0, as many as there is room for,
    which changes meanwhile. Raises DeviceError for GPUs that aren't there.
    """
    if executor.engine == "ray":
        return 0
    if device == "recorded":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device != "gpu":
        return cores
    # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
    from mctskernel.profiling.gpu.choice import chosen_gpus  # noqa: PLC0415 - as said above

    gpus = len(chosen_gpus(executor.gpus).uuids)
    return min(cores, GPU_COMPILERS + (gpus - 1) * MORE_COMPILERS)
