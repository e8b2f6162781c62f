"""A search while it runs: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mctskernel.core.task import short_caveats
from mctskernel.loop import Snapshot

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines without an improvement."""


@contextmanager
def following(console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """A function to call with every snapshot of the search, until the block ends."""
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    with Live(console=console, refresh_per_second=8) as live:

        def follow(snapshot: Snapshot) -> None:
            if snapshot.note:
                live.console.print(Text(snapshot.note))
            if snapshot.improved_by:
                live.console.print(Text(improvement_text(snapshot)))
            live.update(_progress(snapshot))

        yield follow


def counts_text(snapshot: Snapshot) -> str:
    """The number of evaluations and the best speed-up so far."""
    of = f"/{snapshot.budget.evaluations}" if snapshot.budget.evaluations else ""
    return f"{snapshot.evaluations}{of} evaluations, best {snapshot.best_speedup:.2f}x ({_source(snapshot)})"


def improvement_text(snapshot: Snapshot) -> str:
    """A new best kernel, with the edit that made it."""
    return (
        f"{snapshot.evaluations:5d}  {snapshot.best_speedup:6.2f}x {_source(snapshot)}  "
        f"node {snapshot.best_node}: {snapshot.improved_by}"
    )


def outcomes_text(snapshot: Snapshot) -> str:
    """The number of evaluations by outcome."""
    return ", ".join(f"{count} {outcome}" for outcome, count in snapshot.outcomes.items()) or "no outcome yet"


def pace_text(snapshot: Snapshot) -> str:
    """Evaluations a second, and seconds spent and left."""
    left = snapshot.seconds_left
    remaining = f", about {left:.0f} s left" if left is not None else ""
    rate = snapshot.evaluations / snapshot.elapsed_seconds if snapshot.elapsed_seconds > 0 else 0.0
    return f"{rate:.2f} evaluations/s, {snapshot.elapsed_seconds:.0f} s spent{remaining}"


def _plain_lines(console: Console) -> Callable[[Snapshot], None]:
    """A line for every improvement, and one now and then in between."""
    next_line = 0.0

    def print_line(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    def follow(snapshot: Snapshot) -> None:
        nonlocal next_line
        if snapshot.note:
            print_line(snapshot.note)
            return
        if snapshot.improved_by:
            print_line(improvement_text(snapshot))
        # Seconds of a recorded search are not real ones, so the clock decides.
        if (now := time.monotonic()) >= next_line:
            next_line = now + PLAIN_INTERVAL
            print_line(f"{counts_text(snapshot)}; {outcomes_text(snapshot)}; {pace_text(snapshot)}")

    return follow


def _source(snapshot: Snapshot) -> str:
    return f"{snapshot.source}{short_caveats(snapshot.caveats)}"


def _progress(snapshot: Snapshot) -> RenderableType:
    bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=snapshot.spent_fraction), Text(counts_text(snapshot)))
    paid = f", ${snapshot.dollars:.4f}" if snapshot.dollars else ""
    return Group(bar, Text(outcomes_text(snapshot)), Text(pace_text(snapshot) + paid))
