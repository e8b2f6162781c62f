"""`mctskernel best RUN`: the fastest kernel, as source or as a benchmark's solution."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.plain_console import deliver, echo
from mctskernel.problems.registry import solution_of
from mctskernel.report.view import load_view
from mctskernel.run import write_text
from mctskernel.tree.blobs import get_kernel

SOURCE, SOLUTION = "source", "solution"


@click.command()
@click.argument("run", type=options.PATH)
@click.option(
    "--as",
    "form",
    type=click.Choice([SOURCE, SOLUTION]),
    default=SOURCE,
    show_default=True,
    help="The kernel's source with its launch plan, or the files that the benchmark of the run's problem takes: "
    "ModelNew for KernelBench, solution.json for flashinfer-bench and SOL-ExecBench, submission.py for GPU MODE.",
)
@click.option(
    "--out", type=options.PATH, help="With --as solution: the folder to write to. [default: RUN/solution]"
)
def best(run: Path, *, form: str, out: Path | None) -> None:
    """Print the source of the best kernel of RUN, or write it as a benchmark's solution.

    While the search is running it is the fastest kernel so far, which has not passed final validation; a note on
    standard error says so.
    """
    view = load_view(run)
    if view.answer is None:
        echo("mctskernel: this is the best so far, which has not passed the final validation.", err=True)
    for caveat in view.manifest.caveats:
        echo(f"mctskernel: {caveat}.", err=True)
    kernel = get_kernel(view.folder.blobs, view.best.kernel)
    if form == SOURCE:
        deliver(kernel.source)
        return
    view.refuse_recorded()
    for name, text in solution_of(view.folder.load_task(), kernel).items():
        file = (out or run / "solution") / name
        write_text(file, text)
        echo(f"Wrote {file}.")
