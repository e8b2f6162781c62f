"""A search while it runs, in this process or another: a progress bar or a page in a terminal, plain lines elsewhere."""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mctskernel.loop import Snapshot, is_improvement, root_failure, valid_speedup
from mctskernel.profiling.quantities import time_text
from mctskernel.profiling.reward import is_eligible
from mctskernel.proposers import OUTSIDE
from mctskernel.report.notes import counted
from mctskernel.report.progress import Progress
from mctskernel.report.terminal import path_table
from mctskernel.report.view import View
from mctskernel.run import Manifest, RunError, RunFolder, read_answer, read_manifest
from mctskernel.tree.events import Evaluated
from mctskernel.tree.journal import GrowingTree, is_being_written
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import edit_title, run_seconds

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines without an improvement."""

LATEST = 8
"""Evaluations that are shown."""


class Phase(enum.StrEnum):
    """The state of a run."""

    NOT_BEGUN = "not begun"
    SEARCHING = "searching"
    WAITING = "waiting for edits from outside"
    FINISHED = "finished"
    CUT_OFF = "interrupted"
    NO_BASELINE = "without a baseline"


@dataclass(frozen=True)
class Result:
    """A finished evaluation, and the state of the search just after it."""

    node: Node
    snapshot: Snapshot


Show = Callable[[Sequence[Result], Phase], None]


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


@contextmanager
def watching(console: Console, run: WatchedRun) -> Iterator[Show]:
    """A function to call with new results and the phase of the run, until the block ends."""
    if not console.is_terminal:
        with following(console) as follow:

            def print_lines(results: Sequence[Result], _: Phase) -> None:
                for result in results:
                    follow(result.snapshot)

            yield print_lines
        return
    latest: deque[Result] = deque(maxlen=LATEST)
    with Live(console=console, refresh_per_second=4) as live:

        def show(results: Sequence[Result], phase: Phase) -> None:
            latest.extend(results)
            live.update(page(run, latest, phase))

        yield show


def page(run: WatchedRun, latest: Sequence[Result], phase: Phase) -> RenderableType:
    """The progress of the search, its latest evaluations, and the path to the best kernel so far."""
    lines: list[RenderableType] = []
    if run.manifest is not None:
        task, device = run.manifest.configuration.task, View(run.folder, run.tree, None).device
        lines.append(Text.assemble((task, "bold"), f" on {device}  ", (str(run.folder.path), "dim")))
    if latest:
        snapshot = latest[-1].snapshot
        lines += [_progress(snapshot), Text(""), _latest(run.tree, latest), Text("")]
        lines += [Text("path to the best kernel", "bold"), path_table(run.tree, snapshot.best_node), Text("")]
    trouble = phase in {Phase.CUT_OFF, Phase.NO_BASELINE}
    lines.append(Text(run.account(phase), "yellow" if trouble else "dim"))
    return Group(*lines)


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
    return (
        f"{snapshot.source}, unverified reference" if snapshot.unverified_reference else str(snapshot.source)
    )


def _progress(snapshot: Snapshot) -> RenderableType:
    bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=snapshot.spent_fraction), Text(counts_text(snapshot)))
    paid = f", ${snapshot.dollars:.4f}" if snapshot.dollars else ""
    return Group(bar, Text(outcomes_text(snapshot)), Text(pace_text(snapshot) + paid))


def _latest(tree: Tree, latest: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("node", justify="right", no_wrap=True, min_width=4)
    table.add_column("latest edits", ratio=1, no_wrap=True, overflow="ellipsis")
    for heading in ("outcome", "gain", "total"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=7)
    for result in reversed(latest):
        node, score = result.node, result.node.score
        parent = tree.nodes[node.parent].score if node.parent is not None else None
        speedup = score.speedup if score else 0.0
        table.add_row(
            str(node.id),
            Text(edit_title(tree, node)),
            Text(_outcome(node)),
            f"{speedup / parent.speedup:.2f}x" if parent and parent.speedup and speedup else "",
            f"{speedup:.2f}x" if speedup else "",
            style="bold green" if result.snapshot.improved_by else "" if speedup else "dim",
        )
    return table


def _outcome(node: Node) -> str:
    evaluation = node.evaluation
    if evaluation is None:
        return "in flight"
    if evaluation.quarantine:
        return "quarantined"
    seconds = run_seconds(evaluation)
    return time_text(seconds) if evaluation.ok and seconds else str(evaluation.outcome)


class WatchedRun:
    """A run as far as it is written down. Watching changes nothing in it and does not disturb the search."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._growing = GrowingTree(self.folder.journal)
        self._manifest: Manifest | None = None
        self._begin()

    @property
    def tree(self) -> Tree:
        """The tree up to the last event that was read."""
        return self._growing.tree

    @property
    def manifest(self) -> Manifest | None:
        """The content of run.json, None until it is there. Raises RunError for what is no run, or a newer one."""
        if self._manifest is None and self.folder.manifest.exists():
            self._manifest = read_manifest(self.folder)
            self._begin()
        elif self._manifest is None and self._holds_something_else():
            raise RunError(f"{self.folder.path} is not a run: it has no run.json.")
        return self._manifest

    @property
    def view(self) -> View:
        """The run as `show` sees it. Raises RunError."""
        return View(self.folder, self.tree, read_answer(self.folder))

    @property
    def quiet_seconds(self) -> float:
        """Seconds since the last event was written."""
        return max(0.0, time.time() - self._progress.last) if self._progress.last else 0.0

    def catch_up(self) -> Iterator[Result]:
        """The evaluations that finished since the last call. Raises RunError and JournalError."""
        manifest = self.manifest
        if manifest is None:
            return
        if self._growing.has_gone_back():
            self._begin()
        for event in self._growing.advance():
            self._progress.take(event)
            if isinstance(event, Evaluated):
                yield self._result(manifest, event)

    def phase(self) -> Phase:
        """Whether a process is searching it and, if not, how the search ended. Raises RunError."""
        manifest, tree = self.manifest, self.tree
        if manifest is None or not tree.nodes:
            return Phase.NOT_BEGUN
        # `ask` and `tell` open the journal again and again, and must never find it locked by this check.
        is_external = manifest.configuration.proposer == OUTSIDE
        if not is_external and is_being_written(self.folder.journal):
            return Phase.SEARCHING
        root = tree.nodes[0].evaluation
        if root is not None and not is_eligible(root):
            return Phase.NO_BASELINE
        if read_answer(self.folder) is not None and not tree.pending:
            return Phase.FINISHED
        return Phase.WAITING if is_external else Phase.CUT_OFF

    def account(self, phase: Phase) -> str:
        """The state of the run in a sentence that says what to do next."""
        path, tree = self.folder.path, self.tree
        match phase:
            case Phase.NOT_BEGUN:
                return f"{path} has not begun."
            case Phase.SEARCHING:
                return f"Searching; {len(tree.pending)} in flight, last event {self.quiet_seconds:.0f} s ago."
            case Phase.WAITING:
                return f"Waiting for edits: mctskernel ask {path}"
            case Phase.FINISHED:
                return f"The search has finished. To search further: mctskernel resume {path} --budget N"
            case Phase.NO_BASELINE:
                return root_failure(tree)
            case Phase.CUT_OFF:
                lost = f" with {counted(len(tree.pending), 'evaluation')} in flight" if tree.pending else ""
                return f"The search was interrupted{lost}. To go on: mctskernel resume {path}"

    def _begin(self) -> None:
        spent = self._manifest.configuration.spent if self._manifest else None
        self._progress = Progress(spent) if spent else Progress()
        self._outcomes: Counter[str] = Counter()
        self._best = 0

    def _holds_something_else(self) -> bool:
        """Whether the folder exists, and isn't one that a search has just begun to fill."""
        path = self.folder.path
        if not path.exists():
            return False
        return not path.is_dir() or (any(path.iterdir()) and not self.folder.task.is_dir())

    def _result(self, manifest: Manifest, event: Evaluated) -> Result:
        node, progress = self.tree.nodes[event.node], self._progress
        improved = node.id > 0 and is_improvement(node, self.tree.nodes[self._best])
        if improved:
            self._best = node.id
        self._outcomes[str(event.evaluation.outcome)] += 1
        snapshot = Snapshot(
            budget=manifest.configuration.budget,
            evaluations=progress.evaluations,
            outcomes=dict(self._outcomes.most_common()),
            best_node=self._best,
            best_speedup=valid_speedup(self.tree.nodes[self._best]),
            source=event.evaluation.source,
            elapsed_seconds=progress.seconds,
            dollars=progress.dollars,
            improved_by=edit_title(self.tree, node) if improved else "",
            unverified_reference=manifest.unverified_reference,
        )
        return Result(node, snapshot)
