"""`mctskernel best RUN`: the source of the answer."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import deliver, echo
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import UNANCHORED, TaskError
from mctskernel.host_code import HostCodeError, host_module
from mctskernel.report.view import load_view
from mctskernel.run import open_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--standalone",
    is_flag=True,
    help="As a Python module that needs PyTorch alone, and Triton or a CUDA toolkit: its function `run` takes the "
    "task's inputs and returns its outputs.",
)
def best(run: Path, *, standalone: bool) -> None:
    """Print the source of the best kernel of RUN, launch plan included.

    While the search is going on it is the fastest so far, which has not passed the last gate: a remark on
    standard error says so.
    """
    view = load_view(run)
    if view.answer is None:
        echo("mctskernel: the search has not stopped yet; this is the best so far.", err=True)
    if view.manifest.unanchored:
        echo(f"mctskernel: {UNANCHORED}.", err=True)
    source = view.source(view.best.id)
    deliver(_module(run, source) if standalone else source)


def _module(run: Path, source: str) -> str:
    task = open_run(run).load_task()
    try:
        return host_module(task, Kernel(source, task.starting_kernel.language))
    except HostCodeError as error:
        raise TaskError(str(error)) from error
