"""What all sessions share of the machine that they judge on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mctskernel.profiling.architecture import FILE_SUFFIX


def shared_files(kind: str, architecture: str, gpus: Sequence[str]) -> tuple[Path, ...]:
    """Files that sessions must be able to read: by which they take turns on GPUs, or that describes the modelled one.

    Those of the turns are made, which a session couldn't do. Raises DeviceError where there is no such GPU.
    """
    if kind != "gpu":
        return (Path(architecture),) if architecture.endswith(FILE_SUFFIX) else ()
    # Imported here: it needs the driver's bindings, which a machine without a GPU may lack.
    from mctskernel.profiling.gpu.choice import chosen_gpus  # noqa: PLC0415 - as said above
    from mctskernel.profiling.gpu.turn import COUNTING, Turn, turn_files  # noqa: PLC0415 - as said above

    turns = (*chosen_gpus(gpus).uuids, COUNTING)
    for turn in turns:
        Turn(turn).close()
    return tuple(file for turn in turns for file in turn_files(turn))
