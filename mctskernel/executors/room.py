"""How many evaluations there is room for where nobody says."""

from __future__ import annotations

import os

from mctskernel.core.device import is_remote
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Language

GPU_COMPILERS = {Language.CUDA: 4, Language.TRITON: 8}
"""Processes that compile for the one that holds a GPU. Triton takes a second and more over tensor-core kernels."""

MORE_COMPILERS = {Language.CUDA: 2, Language.TRITON: 4}
"""And for each further GPU: to build takes about as long as to judge, and the first ones' rest bridges what varies."""


def workers_on(device: str, language: Language, executor: ExecutorOptions = LOCAL) -> int:
    """How many workers a device gets where nobody says: one for each core that this process may use.

    GPUs get `GPU_COMPILERS` and `MORE_COMPILERS` at the most, and where evaluations are looked up there is one: more
    would only let the search run ahead of what it knows. On a server and in a cluster it is 0, as many as there
    is room for, which changes meanwhile. Raises DeviceError for GPUs that aren't there.
    """
    if executor.engine == "ray":
        return 0
    if device == "recorded":
        return 1
    if is_remote(device):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device != "gpu":
        return cores
    return min(cores, compilers_for(len(_gpus_of(executor)), language))


def compilers_for(gpus: int, language: Language) -> int:
    """How many processes keep so many GPUs busy, at least one."""
    return GPU_COMPILERS[language] + (gpus - 1) * MORE_COMPILERS[language]


def _gpus_of(executor: ExecutorOptions) -> tuple[str, ...]:
    # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
    from mctskernel.profiling.gpu.choice import chosen_gpus  # noqa: PLC0415 - as said above

    return chosen_gpus(executor.gpus).uuids
