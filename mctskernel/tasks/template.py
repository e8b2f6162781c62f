"""A new task folder, from a commented template that runs as it is."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.task_file import write_new_task

_TEMPLATE = Path(__file__).parent / "template_files"
_FILES = ("task.toml", "reference.py", "kernel.cu")


def create_task(folder: Path) -> None:
    """Write the template's three files into a folder. Raises what `write_new_task` raises."""
    write_new_task(folder, {name: (_TEMPLATE / name).read_text("utf-8") for name in _FILES})
