"""`mctskernel check TASK`: what is wrong with a task."""

from __future__ import annotations

import sys

import rich_click as click

from mctskernel.check_task import check_task
from mctskernel.cli.errors import BAD_TASK
from mctskernel.cli.plain_console import echo
from mctskernel.cli.problems import find_task_or_problem
from mctskernel.core.kernel import Language


@click.command()
@click.argument("task")
@click.pass_context
def check(context: click.Context, *, task: str) -> None:
    """Run the reference and the starting kernel of TASK, and say what is wrong.

    TASK is a folder, the name of a built-in task, or a benchmark's problem. Exits with 3 when there is a problem.
    """
    report = check_task(find_task_or_problem(context, task, Language.CUDA))
    for line in report.checked:
        echo(f"ok       {line}")
    for problem in report.problems:
        echo(f"problem  {problem}")
    if not report.ok:
        sys.exit(BAD_TASK)
    echo(f"Next: mctskernel search {task}")
