"""A new task folder, from a commented template that runs as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from mctskernel.core.task import TaskError

_TEMPLATE = Path(__file__).parent / "template"
_FILES = ("task.toml", "reference.py", "kernel.cu")


def create_task(folder: Path) -> None:
    """Write the template's three files into a folder, made if need be.

    Raises TaskError, before anything is written, if one of them is there already; and if the folder can't be
    written.
    """
    present = [name for name in _FILES if (folder / name).exists()]
    if present:
        raise TaskError(f"{folder / present[0]} exists; a new task overwrites nothing.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(_TEMPLATE / name, folder / name)
    except OSError as error:
        raise TaskError(f"{folder} can't be written: {error.strerror or error}.") from error
