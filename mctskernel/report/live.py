"""A search while it runs: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mctskernel.core.quantities import speedup_text
from mctskernel.core.task import short_caveats
from mctskernel.loop import Snapshot
from mctskernel.report.notes import counted

PLAIN_INTERVAL = 10.0  # seconds between plain lines without an improvement

RECENT = 20  # evaluations whose pace says how much time is left

NOTEWORTHY = 10  # evaluations without a gain that are said


@contextmanager
def following(console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """Show the progress of a search until the block ends; yields what to call with every snapshot."""
    pace = Pace()
    if not console.is_terminal:
        yield _plain_lines(console, pace)
        return
    with Live(console=console, refresh_per_second=8) as live:

        def follow(snapshot: Snapshot) -> None:
            if snapshot.note:
                live.console.print(Text(snapshot.note))
            if snapshot.improved_by:
                live.console.print(Text(improvement_text(snapshot)))
            live.update(_progress(snapshot, pace.text(snapshot)))

        yield follow


class Pace:
    """How fast a search is, by its latest evaluations: later ones may take longer, or less long."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT + 1)

    def text(self, snapshot: Snapshot) -> str:
        """Return the evaluations a second, and seconds spent and left."""
        now = snapshot.evaluations, snapshot.elapsed_seconds, snapshot.spent_fraction
        if not self._recent or self._recent[-1][0] != now[0]:
            self._recent.append(now)
        evaluations, seconds, spent = (last - first for first, last in zip(self._recent[0], now, strict=True))
        left = seconds / spent * (1 - now[2]) if spent > 0 and evaluations else None
        rate = f"{evaluations / seconds:.2f} evaluations/s, " if seconds > 0 and evaluations else ""
        remaining = f", at most {left:.0f} s left" if left is not None else ""
        return f"{rate}{snapshot.elapsed_seconds:.0f} s spent{remaining}"


def counts_text(snapshot: Snapshot) -> str:
    """Return the number of evaluations, the best speed-up so far, and for how long nothing was faster."""
    limit, patience, without = snapshot.budget.evaluations, snapshot.budget.patience, snapshot.without_gain
    done = (
        f"{snapshot.evaluations}/{limit} evaluations"
        if limit
        else counted(snapshot.evaluations, "evaluation")
    )
    stops = f" of at most {patience}" if patience else ""
    stale = f", no gain for {without}{stops}" if without >= NOTEWORTHY else ""
    return f"{done}, best {_speedup(snapshot)} ({_source(snapshot)}){stale}"


def improvement_text(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.evaluations:5d}  {_speedup(snapshot):>7} {_source(snapshot)}  "
        f"node {snapshot.best_node}: {snapshot.improved_by}"
    )


def outcomes_text(snapshot: Snapshot) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in snapshot.outcomes.items()) or "no outcome yet"


def validation_text(snapshot: Snapshot) -> str:
    """Return the final validation that goes on, and what is left of a budget in seconds."""
    limit = f" of {snapshot.budget.seconds:.0f}" if snapshot.budget.seconds else ""
    return (
        f"Final validation of node {snapshot.best_node} in a new process, with a fresh seed: "
        f"{snapshot.validating or 0.0:.0f} s, {snapshot.elapsed_seconds:.0f}{limit} s spent; Ctrl-C leaves it out."
    )


def _plain_lines(console: Console, pace: Pace) -> Callable[[Snapshot], None]:
    """A line for every improvement, and one now and then in between."""
    next_line, validated = 0.0, None

    def print_line(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    def follow(snapshot: Snapshot) -> None:
        nonlocal next_line, validated
        if snapshot.note:
            print_line(snapshot.note)
            return
        if snapshot.improved_by:
            print_line(improvement_text(snapshot))
        paced = pace.text(snapshot)
        is_new = snapshot.validating is not None and snapshot.best_node != validated
        # Seconds of a recorded search are not real ones, so the clock decides.
        if (now := time.monotonic()) >= next_line or is_new:
            next_line = now + PLAIN_INTERVAL
            if snapshot.validating is not None:
                validated = snapshot.best_node
                print_line(validation_text(snapshot))
            else:
                print_line(f"{counts_text(snapshot)}; {outcomes_text(snapshot)}; {paced}")

    return follow


def _speedup(snapshot: Snapshot) -> str:
    return speedup_text(snapshot.best_speedup, snapshot.source)


def _source(snapshot: Snapshot) -> str:
    return f"{snapshot.source}{short_caveats(snapshot.caveats)}"


def _progress(snapshot: Snapshot, paced: str) -> RenderableType:
    bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    if snapshot.validating is not None:
        bar.add_row(ProgressBar(pulse=True), Text(counts_text(snapshot)))
        return Group(bar, Text(validation_text(snapshot)))
    bar.add_row(ProgressBar(total=1.0, completed=snapshot.spent_fraction), Text(counts_text(snapshot)))
    paid = f", ${snapshot.dollars:.4f}" if snapshot.dollars else ""
    return Group(bar, Text(outcomes_text(snapshot)), Text(paced + paid))
