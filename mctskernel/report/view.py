"""One view of a run, for every host: terminal, Markdown, HTML, Jupyter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mctskernel.answer import NOTHING_HELD_OUT, Answer, believed_speedup, read_answer
from mctskernel.core.evaluation import Evaluation, Timing
from mctskernel.core.kernel import Language
from mctskernel.core.task import UNANCHORED
from mctskernel.edits.patch import unified_diff
from mctskernel.profiling.changes import Comparison, compare
from mctskernel.profiling.quantities import time_text
from mctskernel.report.conversation import Conversation, conversation
from mctskernel.report.gpus import UsedGpu, used_gpus
from mctskernel.run import Manifest, RunError, RunFolder, open_run, read_manifest
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import Step, trajectory


@dataclass(frozen=True)
class View:
    """A run: its folder, its tree and, once its search has stopped, its answer."""

    folder: RunFolder
    tree: Tree
    answer: Answer | None

    @cached_property
    def manifest(self) -> Manifest:
        """The content of run.json."""
        return read_manifest(self.folder)

    @property
    def device(self) -> str:
        """The device and the GPU that it is or stands for."""
        return f"{self.manifest.configuration.device}, {self.manifest.fingerprint.get('gpu', 'unknown GPU')}"

    @property
    def evaluations(self) -> int:
        """Evaluations that have finished, those of starting configurations that failed included."""
        return self.tree.evaluations + self.manifest.configuration.spent.evaluations

    @property
    def gate(self) -> str:
        """What the last gate found of the answer, and what it can't know, in sentences."""
        known = self._gate
        return f"{known} {UNANCHORED.capitalize()}." if self.manifest.unanchored else known

    @property
    def _gate(self) -> str:
        if self.answer is None:
            return "Still searching: the best so far has not passed the last gate."
        if self.manifest.configuration.language is Language.CONFIGURATION:
            return "Last gate: none, because recorded configurations can't be run again."
        passed = sum(check.passed for check in self.answer.checks)
        where = (
            "fresh seeds" if NOTHING_HELD_OUT in self.answer.remarks else "held-out shapes and fresh seeds"
        )
        sentence = f"Last gate: {passed} checks on {where} passed."
        anchor = "; unanchored" if self.manifest.unanchored else ""
        times = [
            f"{timing.baseline_seconds / timing.seconds:.2f}x over the starting kernel at {timing.shape}{anchor}"
            for timing in self.answer.timings
            if timing.baseline_seconds is not None
        ]
        return " ".join([sentence, *([f"Timed there: {', '.join(times)}."] if times else [])])

    def refuse_recorded(self) -> None:
        """Raises RunError where nodes are configurations, of which nothing but recorded times is known."""
        if self.manifest.configuration.language is Language.CONFIGURATION:
            raise RunError(
                f"{self.folder.path} searched recorded configurations: there are no kernels in it that could be run."
            )

    @cached_property
    def conversation(self) -> Conversation:
        """What asking models came to. Raises JournalError."""
        return conversation(read_events(self.folder.journal))

    @cached_property
    def gpus(self) -> tuple[UsedGpu, ...]:
        """The GPUs that timed its kernels, as far as evaluations name them. Raises JournalError."""
        if self.manifest.configuration.device in {"model", "recorded"}:
            return ()
        return used_gpus(read_events(self.folder.journal))

    @property
    def outcomes(self) -> dict[str, int]:
        """How many evaluations ended in each outcome, the most frequent first."""
        found = (node.outcome for node in self.tree.nodes)
        return dict(Counter(str(outcome) for outcome in found if outcome is not None).most_common())

    @property
    def best(self) -> Node:
        """The answer's node, or the fastest so far while there is none."""
        if self.answer is not None and self.answer.node is not None:
            return self.tree.nodes[self.answer.node]
        if not self.tree.nodes:
            raise RunError(f"{self.folder.path} holds no evaluation yet.")
        return max(self.tree.nodes, key=believed_speedup)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The path from the starting kernel to the best one."""
        return trajectory(self.tree, self.best.id).steps

    def node(self, number: int) -> Node:
        """A node by its number. Raises RunError for one that doesn't exist."""
        if not 0 <= number < len(self.tree.nodes):
            raise RunError(
                f"{self.folder.path} has the nodes 0 to {len(self.tree.nodes) - 1}, no node {number}."
            )
        return self.tree.nodes[number]

    def source(self, number: int) -> str:
        """The source text of a node's kernel."""
        return self.folder.blobs.get(self.node(number).kernel.source)

    def diff(self, number: int) -> str:
        """What a node's edit changed in its parent, as a unified diff; empty for the root."""
        parent = self.node(number).parent
        return "" if parent is None else unified_diff(self.source(parent), self.source(number))

    def comparison(self, number: int) -> Comparison | None:
        """What a node's edit did to its parent; None for the root, and unless both were timed."""
        parent = self.node(number).parent
        if parent is None:
            return None
        before, after = self.node(parent).evaluation, self.node(number).evaluation
        return compare(before, after) if before and after else None

    def evaluation(self, number: int) -> Evaluation:
        """A node's evaluation. Raises RunError while it is in flight."""
        evaluation = self.node(number).evaluation
        if evaluation is None:
            raise RunError(f"Node {number} of {self.folder.path} has not been evaluated yet.")
        return evaluation


def load_view(path: Path) -> View:
    """The view of a run folder. Raises RunError and JournalError."""
    folder = open_run(path)
    return View(folder, read_tree(folder.journal), read_answer(folder))


def timing_text(timing: Timing) -> str:
    """A timing with its interval, when it has one."""
    spread = f" [{time_text(timing.low)} to {time_text(timing.high)}]" if timing.high > timing.low else ""
    shape = f" at {timing.shape}" if timing.shape else ""
    return f"{time_text(timing.seconds)}{spread}{shape}"
