"""Who does the evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from mctskernel.core.device import DeviceSpec, is_remote
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions
from mctskernel.core.surrogate import Surrogate
from mctskernel.executors.local import LocalExecutor
from mctskernel.executors.recorded import open_recorded
from mctskernel.executors.room import workers_on
from mctskernel.profiling.architecture import FILE_SUFFIX


def open_executor(
    spec: DeviceSpec, workers: int = 1, options: ExecutorOptions = LOCAL
) -> AbstractContextManager[Executor]:
    """What evaluates kernels on the described device; use it as a context manager.

    `workers` are evaluations at a time on `model` and `recorded`, and processes that compile for those that hold the
    GPUs on `gpu`; of a server's evaluations in flight they are the most. 0 is as many as there is room for. Raises
    TaskError, SpaceError and DeviceError.
    """
    if is_remote(spec.kind):
        from mctskernel.executors.remote import open_remote  # noqa: PLC0415 - brings a client of HTTP along

        return open_remote(spec, workers)
    if options.engine == "ray":
        # Imported here: it brings what judges on every device along.
        from mctskernel.executors.ray import open_ray_executor  # noqa: PLC0415 - as said above

        return open_ray_executor(spec, workers, options)
    workers = workers or workers_on(spec.kind, spec.language, options)
    if spec.kind == "gpu":
        # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
        from mctskernel.executors.gpu import open_gpus  # noqa: PLC0415 - as said above

        return open_gpus(spec, workers, options)
    if spec.kind == "recorded":
        return open_recorded(spec, workers)
    return LocalExecutor(spec, workers=workers)


def judging_kind(kind: str) -> str:
    """The kind of the device that judges, which of a server's only the server knows. Raises DeviceError."""
    if not is_remote(kind):
        return kind
    # Imported here: it brings a client of HTTP along, which takes a while.
    from mctskernel.executors.remote import server_status  # noqa: PLC0415 - as said above

    return server_status(kind).device


def open_surrogate(
    spec: DeviceSpec, fingerprint: Mapping[str, str], workers: int
) -> AbstractContextManager[Surrogate]:
    """What predicts times on the described device, in `workers` processes; use it as a context manager.

    On a GPU, whosever it is, the description is that of the GPU that the executor's fingerprint names, unless `spec`
    names a file. Raises DeviceError for a GPU that nothing describes.
    """
    # Imported here: the model brings the compiler along, and a run is read where there is none.
    from mctskernel.executors.surrogate import ModelSurrogate  # noqa: PLC0415 - as said above
    from mctskernel.profiling.surrogate import architecture_for  # noqa: PLC0415 - as said above

    architecture = spec.architecture
    if fingerprint.get("device") == "gpu" and not architecture.endswith(FILE_SUFFIX):
        architecture = architecture_for(fingerprint["gpu"], fingerprint["architecture"])
    return ModelSurrogate(replace(spec, kind="model", architecture=architecture), workers=workers)
