"""A TASK that may be a benchmark's problem: it is made a task folder, for as long as the command runs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import rich_click as click

from mctskernel.cli.plain_console import echo
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.problems.folders import is_problem, write_problem
from mctskernel.problems.registry import read_problem
from mctskernel.tasks import find_task

WITHOUT_KERNEL = (
    "A search starts at a kernel: make the task's folder with `mctskernel new-task DIR --from-problem {path}` and "
    "write kernel.cu or kernel.py there."
)


def find_task_or_problem(context: click.Context, name: str, language: Language) -> Path:
    """The folder of a task; of a benchmark's problem, one that is made of it and goes with the command.

    What its user should know is said on standard error. Raises TaskError.
    """
    if not is_problem(name):
        return find_task(name)
    problem = read_problem(Path(name), language)
    for remark in problem.remarks:
        echo(f"mctskernel: {remark}", err=True)
    if not problem.has_kernel:
        raise TaskError(WITHOUT_KERNEL.format(path=name))
    folder = Path(context.with_resource(TemporaryDirectory(prefix="mctskernel-"))) / problem.name
    write_problem(problem, folder)
    return folder
