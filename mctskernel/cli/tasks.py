"""`mctskernel tasks`: the built-in tasks."""

from __future__ import annotations

import rich_click as click
from rich.table import Table

from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.task import shape_label
from mctskernel.core.task_file import load_task
from mctskernel.tasks import DEFAULT_TASK, builtin_tasks


@click.command()
def tasks() -> None:
    """List the built-in tasks and the shapes that they are searched at.

    Each is a folder as you would write one yourself; `mctskernel new-task DIR` makes such a folder.
    """
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "what it computes", "search shapes"):
        table.add_column(heading)
    for name, folder in builtin_tasks().items():
        task = load_task(folder)
        shapes = ", ".join(shape_label(shape) for shape in task.search_shapes)
        table.add_row(f"{name} (default)" if name == DEFAULT_TASK else name, task.summary, shapes)
    PlainConsole().print(table)
