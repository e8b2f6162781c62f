"""`mctskernel tasks`: the built-in tasks; and how commands find the task that a word names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import rich_click as click
from rich.table import Table

from mctskernel.cli.plain_console import PlainConsole, deliver_json, echo
from mctskernel.core.kernel import Language
from mctskernel.core.task import Precision, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import is_problem, read_beside, read_problem, write_problem
from mctskernel.problems.torch_task import COMPILED_START
from mctskernel.profiling.processes.forked import ForkedCall, wait_for
from mctskernel.tasks.builtin import DEFAULT_TASK, builtin_tasks, find_task

START_SECONDS = 20.0  # how long an open device waits for a start; most are there before


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tasks(*, as_json: bool) -> None:
    """List the built-in tasks with their search shapes.

    Each is a folder as you would write one yourself; `mctskernel new-task DIR` makes such a folder.
    """
    found = {name: load_task(folder) for name, folder in builtin_tasks().items()}
    if as_json:
        deliver_json(
            [
                {
                    "name": name,
                    "summary": task.summary,
                    "folder": str(task.folder),
                    "shapes": task.search_shapes,
                    "default": name == DEFAULT_TASK,
                }
                for name, task in found.items()
            ]
        )
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "what it computes", "search shapes"):
        table.add_column(heading)
    for name, task in found.items():
        shapes = ", ".join(shape_label(shape) for shape in task.search_shapes)
        table.add_row(f"{name} (default)" if name == DEFAULT_TASK else name, task.summary, shapes)
    PlainConsole().print(table)


@contextmanager
def compiled_start(name: str, precision: Precision) -> Iterator[Callable[[Path], None]]:
    """Generate a problem's start from torch.compile in another process; yields what writes it into a task folder."""
    call = ForkedCall(read_beside, Path(name), Language.TRITON, precision, log=Path(os.devnull))

    def write(folder: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not call.collect() and time.monotonic() < deadline:
            wait_for([call], 1.0)
        made = call.ended or f"There is no start from torch.compile after {START_SECONDS:.0f} s."
        if isinstance(made, Problem) and made.has_kernel:
            (folder / COMPILED_START).write_bytes(made.files["kernel.py"])
        else:
            echo(f"mctskernel: {made.notes[-1] if isinstance(made, Problem) else made}", err=True)

    with closing(call):
        yield write


def find_task_or_problem(
    context: click.Context, name: str, language: Language | None, precision: Precision = Precision.LOCKED
) -> Path:
    """The folder of a task; of a benchmark's problem a temporary one, until the command ends. Raises TaskError."""
    if not is_problem(name):
        if Path(name).suffix == ".py":
            why = "is no benchmark's problem: KernelBench's have a class Model and get_inputs"
            raise TaskError(f"{name} {why if Path(name).is_file() else 'does not exist'}.")
        if precision is Precision.RELAXED:
            raise TaskError(
                f"{name} is no benchmark's problem, whose tolerance --precision relaxed takes; task.toml says which "
                "tolerance a task has."
            )
        return find_task(name)
    echo(f"Reading {name}: its sizes, inputs and starting kernels", err=True)
    problem = read_problem(Path(name), language, precision)
    for warning in problem.notes:
        echo(f"mctskernel: {warning}", err=True)
    if not problem.has_kernel:
        raise TaskError(
            f"{name} has no starting kernel: make a task folder with `mctskernel new-task DIR --from-problem {name}` "
            "and write kernel.cu or kernel.py there."
        )
    folder = Path(context.with_resource(TemporaryDirectory(prefix="mctskernel-"))) / problem.name
    write_problem(problem, folder)
    return folder
