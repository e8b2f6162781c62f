"""A search while it runs: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from mctskernel.search import Snapshot

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines that report no improvement."""


@contextmanager
def following(console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """A function to call with every snapshot of the search, until the block ends."""
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"), console=console
    )
    row = bar.add_task("searching", total=None, counts="")
    details = Text()
    with Live(Group(bar, details), console=console, refresh_per_second=8) as live:

        def follow(snapshot: Snapshot) -> None:
            bar.update(
                row, completed=snapshot.spent_fraction * 1000, total=1000, counts=counts_text(snapshot)
            )
            if snapshot.remark:
                live.console.print(Text(snapshot.remark))
            if snapshot.improved_by:
                live.console.print(Text(improvement_text(snapshot)))
            details.plain = f"{outcomes_text(snapshot)}\n{pace_text(snapshot)}"

        yield follow


class _PlainLines:
    """One line for every improvement, and one now and then in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.remark:
            self._print(snapshot.remark)
            return
        if snapshot.improved_by:
            self._print(improvement_text(snapshot))
        # A recorded search spends seconds that nobody waits for.
        if (now := time.monotonic()) >= self._next_line:
            self._next_line = now + PLAIN_INTERVAL
            self._print(f"{counts_text(snapshot)}; {outcomes_text(snapshot)}; {pace_text(snapshot)}")

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def counts_text(snapshot: Snapshot) -> str:
    """Evaluations, of how many, and the best so far."""
    of = f"/{snapshot.budget.evaluations}" if snapshot.budget.evaluations else ""
    return f"{snapshot.evaluations}{of} evaluations, best {snapshot.best_speedup:.2f}x ({_source(snapshot)})"


def improvement_text(snapshot: Snapshot) -> str:
    """A new best, with the edit that made it."""
    return (
        f"{snapshot.evaluations:5d}  {snapshot.best_speedup:6.2f}x {_source(snapshot)}  "
        f"node {snapshot.best_node}: {snapshot.improved_by}"
    )


def _source(snapshot: Snapshot) -> str:
    return f"{snapshot.source}, unanchored" if snapshot.unanchored else str(snapshot.source)


def outcomes_text(snapshot: Snapshot) -> str:
    """How many evaluations ended in which outcome."""
    return ", ".join(f"{count} {outcome}" for outcome, count in snapshot.outcomes.items()) or "no outcome yet"


def pace_text(snapshot: Snapshot) -> str:
    """How fast it goes, and for how long it still will."""
    left = snapshot.seconds_left
    remaining = f", about {left:.0f} s left" if left is not None else ""
    rate = snapshot.evaluations / snapshot.elapsed_seconds if snapshot.elapsed_seconds > 0 else 0.0
    return f"{rate:.2f} evaluations/s, {snapshot.elapsed_seconds:.0f} s spent{remaining}"
