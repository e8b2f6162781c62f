"""Who does the evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions
from mctskernel.core.surrogate import Surrogate
from mctskernel.executors.local import LocalExecutor
from mctskernel.executors.recorded import open_recorded
from mctskernel.profiling.architecture import FILE_SUFFIX


def open_executor(
    spec: DeviceSpec, workers: int = 1, options: ExecutorOptions = LOCAL
) -> AbstractContextManager[Executor]:
    """What evaluates kernels on the described device; use it as a context manager.

    `workers` are evaluations at a time on `model` and `recorded`, and processes that compile for those that hold the
    GPUs on `gpu`. Raises TaskError, SpaceError and DeviceError.
    """
    if spec.kind.startswith(("http://", "https://")):
        raise DeviceError(f"{spec.kind} is another machine's device, which this version can't use yet.")
    if options.engine == "ray":
        raise DeviceError("This version can't use a Ray cluster yet.")
    if spec.kind == "gpu":
        # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
        from mctskernel.executors.gpu import GpuExecutor  # noqa: PLC0415 - as said above

        return GpuExecutor(spec, workers=workers)
    if spec.kind == "recorded":
        return open_recorded(spec, workers)
    return LocalExecutor(spec, workers=workers)


def open_surrogate(
    spec: DeviceSpec, fingerprint: Mapping[str, str], workers: int
) -> AbstractContextManager[Surrogate]:
    """What predicts times on the described device, in `workers` processes; use it as a context manager.

    On `gpu` the description is that of the GPU that the executor's fingerprint names, unless `spec` names a file.
    Raises DeviceError for a GPU that nothing describes.
    """
    # Imported here: the model brings the compiler along, and a run is read where there is none.
    from mctskernel.executors.surrogate import ModelSurrogate  # noqa: PLC0415 - as said above
    from mctskernel.profiling.surrogate import architecture_for  # noqa: PLC0415 - as said above

    architecture = spec.architecture
    if spec.kind == "gpu" and not architecture.endswith(FILE_SUFFIX):
        architecture = architecture_for(fingerprint["gpu"], fingerprint["architecture"])
    return ModelSurrogate(replace(spec, kind="model", architecture=architecture), workers=workers)
