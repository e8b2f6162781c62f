"""`mctskernel solution RUN`: the answer in the form of the benchmark that its problem is of."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import echo
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError
from mctskernel.problems.registry import solution_of
from mctskernel.report.view import load_view


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The folder to write to. [default: RUN/solution]"
)
def solution(run: Path, out: Path | None) -> None:
    """Write the best kernel of RUN as a solution of its problem, in the form that the benchmark takes.

    For KernelBench it is a file with the class `ModelNew`, for flashinfer-bench and SOL-ExecBench a solution.json, for
    GPU MODE a submission.py. A file of that name is replaced. While the search is going on it is the fastest kernel so
    far, which has not passed the last gate: a remark on standard error says so.
    """
    view = load_view(run)
    view.refuse_recorded()
    task = view.folder.load_task()
    files = solution_of(task, Kernel(view.source(view.best.id), task.starting_kernel.language))
    if view.answer is None:
        echo("mctskernel: the search has not stopped yet; this is the best so far.", err=True)
    folder = out or run / "solution"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise TaskError(f"{folder} can't be written: {error.strerror or error}.") from error
    for name in files:
        echo(f"Wrote {folder / name}.")
