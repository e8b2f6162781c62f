"""`mctskernel watch RUN`: follow a search that runs in another terminal."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import rich_click as click
from rich.live import Live

from mctskernel.cli import options
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.quantities import speedup_text
from mctskernel.report.terminal import summary
from mctskernel.report.view import load_view
from mctskernel.run import RunFolder
from mctskernel.tree.journal import is_being_written
from mctskernel.tree.trajectory import edit_title

INTERVAL = 1.0  # seconds between two looks at the journal


@click.command()
@click.argument("run", type=options.PATH)
def watch(run: Path) -> None:
    """Follow the search of RUN from another terminal, until it is over.

    A terminal shows the headline and the path to the best kernel so far; elsewhere a line is printed for each
    improvement. Nothing in RUN changes, and Ctrl-C ends only the watching.
    """
    console, journal = PlainConsole(), RunFolder(run).journal
    view, best, size = load_view(run), 0, 0
    is_searched = is_being_written(journal)
    if not is_searched:
        echo("No search of this run goes on.", err=True)
    with Live(console=console, transient=True) if console.is_terminal else nullcontext() as live:
        while is_searched:
            # Asked before the journal is read, so that nothing that was written last is missed.
            is_searched = is_being_written(journal)
            if (written := journal.stat().st_size) != size:
                view, size = load_view(run), written
                if live is not None and view.tree.nodes:
                    live.update(summary(view))
                elif view.tree.nodes and view.best.id != best:
                    best, step = view.best.id, view.steps[-1]
                    edit = edit_title(view.tree, view.tree.nodes[step.node])
                    speedup = speedup_text(step.speedup, view.numbers)
                    echo(f"{view.tree.evaluations:5d}  {speedup:>7} {view.numbers}  node {step.node}: {edit}")
            if is_searched:
                time.sleep(INTERVAL)
    console.print(summary(view))
