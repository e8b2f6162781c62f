"""A watched run on a terminal: a page that is kept up to date, or lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mctskernel.profiling.quantities import time_text
from mctskernel.report.live import counts_text, following, outcomes_text, pace_text
from mctskernel.report.view import View
from mctskernel.report.watched import Phase, Result, WatchedRun
from mctskernel.search import Snapshot
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import edit_title, run_seconds, trajectory

LATEST = 8
"""Evaluations that are shown."""

Show = Callable[[Sequence[Result], Phase], None]


@contextmanager
def watching(console: Console, run: WatchedRun) -> Iterator[Show]:
    """A function to call with the evaluations that came since, and with how the run stands, until the block ends."""
    if not console.is_terminal:
        with following(console) as follow:

            def tell(results: Sequence[Result], _: Phase) -> None:
                for result in results:
                    follow(result.snapshot)

            yield tell
        return
    latest: deque[Result] = deque(maxlen=LATEST)
    with Live(console=console, refresh_per_second=4) as live:

        def show(results: Sequence[Result], phase: Phase) -> None:
            latest.extend(results)
            live.update(page(run, latest, phase))

        yield show


def page(run: WatchedRun, latest: Sequence[Result], phase: Phase) -> RenderableType:
    """How far the search is, what it last evaluated, and the way to the best kernel so far."""
    lines: list[RenderableType] = []
    if run.manifest is not None:
        configuration = run.manifest.configuration
        device = View(run.folder, run.tree, None).device
        lines.append(
            Text.assemble((configuration.task, "bold"), f" on {device}  ", (str(run.folder.path), "dim"))
        )
    if latest:
        snapshot = latest[-1].snapshot
        lines += [
            _bar(snapshot),
            Text(outcomes_text(snapshot)),
            Text(pace_text(snapshot) + (f", ${snapshot.dollars:.4f}" if snapshot.dollars else "")),
            Text(""),
            _latest(run.tree, latest),
            Text(""),
            _path(run.tree, snapshot.best_node),
            Text(""),
        ]
    lines.append(Text(run.account(phase), "yellow" if phase in _TROUBLE else "dim"))
    return Group(*lines)


_TROUBLE = (Phase.CUT_OFF, Phase.NO_BASELINE)


def _bar(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=1.0, completed=snapshot.spent_fraction), Text(counts_text(snapshot)))
    return grid


def _latest(tree: Tree, latest: Sequence[Result]) -> Table:
    table = _table("node", "latest edits", "outcome", "gain", "total")
    for result in reversed(latest):
        node, score = result.node, result.node.score
        parent = tree.nodes[node.parent].score if node.parent is not None else None
        speedup = score.speedup if score else 0.0
        gain = f"{speedup / parent.speedup:.2f}x" if parent and parent.speedup and speedup else ""
        style = "bold green" if result.snapshot.improved_by else "" if speedup else "dim"
        table.add_row(
            str(node.id),
            Text(edit_title(tree, node)),
            Text(_came_of(node)),
            gain,
            f"{speedup:.2f}x" if speedup else "",
            style=style,
        )
    return table


def _came_of(node: Node) -> str:
    evaluation = node.evaluation
    if evaluation is None:
        return "in flight"
    if evaluation.quarantine:
        return "quarantined"
    seconds = run_seconds(evaluation)
    return time_text(seconds) if evaluation.ok and seconds else str(evaluation.outcome)


def _path(tree: Tree, best: int) -> Table:
    table = _table("node", "way to the best", "time", "gain", "total")
    for step in trajectory(tree, best).steps:
        table.add_row(
            str(step.node),
            Text(edit_title(tree, tree.nodes[step.node])),
            time_text(step.seconds) if step.seconds is not None else "",
            f"{step.gain:.2f}x" if step.edit else "",
            f"{step.speedup:.2f}x",
        )
    return table


def _table(*headings: str) -> Table:
    """The second column takes what room there is."""
    table = Table(box=None, pad_edge=False, expand=True)
    for number, heading in enumerate(headings):
        if number == 1:
            table.add_column(heading, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(heading, justify="right", no_wrap=True, min_width=7 if number else 4)
    return table
