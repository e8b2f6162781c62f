"""`mctskernel watch RUN`: follow a search that runs in another terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rich_click as click
from rich.console import Console

from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.report.live import LATEST, Phase, WatchedRun, page, watching
from mctskernel.report.terminal import print_summary
from mctskernel.run import RunError

_WAITS = frozenset({Phase.NOT_BEGUN, Phase.WAITING})
_GOES_ON = _WAITS | {Phase.SEARCHING}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the present state and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=0.5,
    show_default=True,
    help="Seconds between looks at the run.",
)
def watch(run: Path, *, once: bool, interval: float) -> None:
    """Follow the search of RUN from another terminal, until it is over.

    RUN may also be one that has not begun yet, or one that stopped. Nothing in RUN changes, and Ctrl-C ends only the
    watching. A terminal shows progress, the latest edits and the path to the best kernel so far; elsewhere a line is
    printed for every improvement, and one now and then in between.

        mctskernel watch runs/softmax-20260101-120000

        mctskernel watch RUN --once
    """
    console, watched = PlainConsole(), WatchedRun(run)
    if once:
        _print_state(console, watched)
        return
    try:
        phase = _follow(console, watched, interval)
    except KeyboardInterrupt:
        echo(f"Stopped watching {run}.", err=True)
        sys.exit(INTERRUPTED)
    echo(watched.account(phase))
    if phase is not Phase.NO_BASELINE and watched.tree.evaluations:
        print_summary(console, watched.view)
        echo(f"The path with its evidence: mctskernel show {run}")


def _print_state(console: Console, watched: WatchedRun) -> None:
    results = list(watched.catch_up())
    phase = watched.phase()
    if phase is Phase.NOT_BEGUN:
        raise RunError(watched.account(phase))
    console.print(page(watched, results[-LATEST:], phase))


def _follow(console: Console, watched: WatchedRun, interval: float) -> Phase:
    """Show what is new until no process works on the run; return how it was left."""
    phase = Phase.SEARCHING
    with watching(console, watched) as show:
        while True:
            results = list(watched.catch_up())
            before, phase = phase, Phase.SEARCHING
            if not results:
                # Only when nothing is new: a process that writes is at work.
                phase = watched.phase()
            if phase in _WAITS and phase is not before and not console.is_terminal:
                echo(watched.account(phase), err=True)
            show(results, phase)
            if phase not in _GOES_ON:
                return phase
            time.sleep(interval)
