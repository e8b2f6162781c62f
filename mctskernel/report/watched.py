"""A run that another process may be searching: what is new in it, and whether anybody still works on it."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mctskernel.answer import believed_speedup, is_improvement, read_answer
from mctskernel.profiling.reward import is_eligible
from mctskernel.proposers import OUTSIDE
from mctskernel.report.progress import Progress
from mctskernel.report.view import View
from mctskernel.run import Manifest, RunError, RunFolder, read_manifest
from mctskernel.search import Snapshot, root_failure
from mctskernel.tree.events import Evaluated
from mctskernel.tree.growing import GrowingTree, is_being_written
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import edit_title


class Phase(enum.StrEnum):
    """How a run stands."""

    NOT_BEGUN = "not begun"
    SEARCHING = "searching"
    WAITING = "waiting for edits from outside"
    FINISHED = "finished"
    CUT_OFF = "cut off"
    NO_BASELINE = "without a baseline"


@dataclass(frozen=True)
class Result:
    """An evaluation that came back, and what the search stood at just then."""

    node: Node
    snapshot: Snapshot


class WatchedRun:
    """A run as far as it is written down. Nothing in it is changed; whoever searches notices nothing."""

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
        """The evaluations that came back since this was last asked. Raises RunError and JournalError."""
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
        """Whether anybody works on it and, if nobody does, how it was left. Raises RunError."""
        manifest, tree = self.manifest, self.tree
        if manifest is None or not tree.nodes:
            return Phase.NOT_BEGUN
        # Who asks and tells opens the journal again and again, and must never find it locked by a look at it.
        told = manifest.configuration.proposer == OUTSIDE
        if not told and is_being_written(self.folder.journal):
            return Phase.SEARCHING
        root = tree.nodes[0].evaluation
        if root is not None and not is_eligible(root):
            return Phase.NO_BASELINE
        if read_answer(self.folder) is not None and not tree.pending:
            return Phase.FINISHED
        return Phase.WAITING if told else Phase.CUT_OFF

    def account(self, phase: Phase) -> str:
        """How the run stands, in a sentence that says what to do next."""
        path, tree = self.folder.path, self.tree
        match phase:
            case Phase.NOT_BEGUN:
                return f"{path} has not begun."
            case Phase.SEARCHING:
                return f"Searching; {len(tree.pending)} in flight, last event {self.quiet_seconds:.0f} s ago."
            case Phase.WAITING:
                return f"It waits for edits: mctskernel ask {path}"
            case Phase.FINISHED:
                return f"The search is over. To search further: mctskernel resume {path} --budget N"
            case Phase.NO_BASELINE:
                return root_failure(tree)
            case Phase.CUT_OFF:
                lost = f" with {len(tree.pending)} evaluation(s) in flight" if tree.pending else ""
                return (
                    f"Nobody is searching any more: it was cut off{lost}. To go on: mctskernel resume {path}"
                )

    def _begin(self) -> None:
        spent = self._manifest.configuration.spent if self._manifest else None
        self._progress = Progress(spent) if spent else Progress()
        self._outcomes: Counter[str] = Counter()
        self._best, self._best_speedup = 0, 0.0

    def _holds_something_else(self) -> bool:
        """Whether the folder is there, and isn't one that a search has just begun to fill."""
        path = self.folder.path
        if not path.exists():
            return False
        return not path.is_dir() or (any(path.iterdir()) and not self.folder.task.is_dir())

    def _result(self, manifest: Manifest, event: Evaluated) -> Result:
        node, progress = self.tree.nodes[event.node], self._progress
        # Whoever isn't faster needs no look at the evidence, which is in the file.
        faster = event.score.speedup > self._best_speedup
        improved = node.id > 0 and faster and is_improvement(node, self.tree.nodes[self._best])
        if improved or node.id == 0:
            self._best, self._best_speedup = node.id, believed_speedup(node)
        self._outcomes[str(event.evaluation.outcome)] += 1
        snapshot = Snapshot(
            budget=manifest.configuration.budget,
            evaluations=progress.evaluations,
            outcomes=dict(self._outcomes.most_common()),
            best_node=self._best,
            best_speedup=self._best_speedup,
            source=event.evaluation.source,
            elapsed_seconds=progress.seconds,
            dollars=progress.dollars,
            improved_by=edit_title(self.tree, node) if improved else "",
            unanchored=manifest.unanchored,
        )
        return Result(node, snapshot)
