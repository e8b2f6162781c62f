"""`mctskernel new-task DIR`: a template that runs."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.new_task import create_task


@click.command("new-task")
@click.argument("folder", type=click.Path(path_type=Path))
def new_task(folder: Path) -> None:
    """Write a task folder that runs as it is: task.toml, reference.py and kernel.cu, commented.

    Change the three files to your own kernel, then `mctskernel check FOLDER` and `mctskernel search FOLDER`.
    """
    create_task(folder)
    click.echo(f"Wrote {folder}/task.toml, reference.py and kernel.cu.")
    click.echo(f"Next: mctskernel check {folder}")
