"""A new task folder, from a commented template that runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.task_file import write_new_task

FILES = Path(__file__).parent / "template_files"


@dataclass(frozen=True)
class Drafted:
    """The files that were written, and notes on what is left to do."""

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


def create_task(folder: Path) -> Drafted:
    """Write the template's three files into a folder. Raises what `write_new_task` raises."""
    names = ("task.toml", "reference.py", "kernel.cu")
    files = {name: (FILES / name).read_text("utf-8") for name in names}
    write_new_task(folder, files)
    return Drafted(files)
