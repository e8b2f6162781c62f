"""`mctskernel best RUN`: the source of the answer."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import deliver, echo
from mctskernel.core.task import UNANCHORED
from mctskernel.report.view import load_view


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def best(run: Path) -> None:
    """Print the source of the best kernel of RUN, launch plan included.

    While the search is going on it is the fastest so far, which has not passed the last gate: a remark on
    standard error says so.
    """
    view = load_view(run)
    if view.answer is None:
        echo("mctskernel: the search has not stopped yet; this is the best so far.", err=True)
    if view.manifest.unanchored:
        echo(f"mctskernel: {UNANCHORED}.", err=True)
    deliver(view.source(view.best.id))
