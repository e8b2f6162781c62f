"""Trajectories: the path from the root to a node with the evidence of every edit, and what each proposer gained."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.evaluation import Diagnosis, Evaluation, Outcome, Score
from mctskernel.core.proposer import Attempt
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node, Tree

STARTING_KERNEL = "starting kernel"  # the title of the root, which no edit made

KEPT = 64  # gains that are kept, the greatest: enough that some are left without those of one lineage


@dataclass(frozen=True)
class PathStep:
    """An evaluated node and the edit that led to it (None for the root).

    `seconds` is None where nothing was timed; `gain` is the parent's time over the node's, 0 if unknown.
    """

    node: int
    edit: EditRecord | None
    seconds: float | None
    speedup: float
    gain: float
    diagnosis: Diagnosis | None


class TrackRecord:
    """What the edits of each proposer gained in one tree. `best_speedup` is of kernels that aren't quarantined."""

    def __init__(self) -> None:
        self.best_speedup = 1.0
        self._seen = 0
        self._log_gains: dict[str, list[float]] = {}
        self._greatest: list[tuple[float, int]] = []

    def update(self, tree: Tree) -> None:
        """Take in the evaluations that finished since the last call."""
        for number in tree.evaluated[self._seen :]:
            self._take_in(tree, tree.nodes[number])
        self._seen = len(tree.evaluated)

    def standings(self) -> Mapping[str, tuple[float, ...]]:
        """By proposer, the logarithms of the gains of its edits as they were evaluated; 0 where nothing was gained."""
        return {name: tuple(gains) for name, gains in self._log_gains.items()}

    def elsewhere(self, tree: Tree, node: int, count: int) -> tuple[Attempt, ...]:
        """Return the `count` edits with the greatest gains, without those that led to a node or begin there."""
        own = set(tree.lineage(node))
        ranked = sorted(self._greatest, key=lambda each: (-each[0], each[1]))
        others = (made for _, made in ranked if made not in own and tree.nodes[made].parent != node)
        found = (attempt_of(tree, tree.nodes[made]) for made in others)
        return tuple(attempt for attempt, _ in zip(filter(None, found), range(count), strict=False))

    def _take_in(self, tree: Tree, node: Node) -> None:
        attempt = attempt_of(tree, node)
        if attempt is None or node.evaluation is None or node.score is None:
            return
        if node.outcome is Outcome.UNVERIFIABLE:
            return  # It says nothing about the edit.
        is_valid = not node.evaluation.quarantine
        if is_valid:
            self.best_speedup = max(self.best_speedup, node.score.speedup)
        is_gain = attempt.gain > 1 and is_valid
        log_gain = math.log(attempt.gain) if is_gain else 0.0
        self._log_gains.setdefault(attempt.proposer, []).append(log_gain)
        if log_gain > 0:
            heapq.heappush(self._greatest, (log_gain, node.id))
            if len(self._greatest) > KEPT:
                heapq.heappop(self._greatest)


def trajectory(tree: Tree, node: int) -> tuple[PathStep, ...]:
    """Return the steps from the root to a node; the node itself is left out while its evaluation is pending."""
    lineage = (tree.nodes[number] for number in tree.lineage(node))
    return tuple(step for each in lineage if (step := _step(tree, each)))


def lineage_attempts(tree: Tree, node: int) -> tuple[Attempt, ...]:
    """Return the edits that made a node's kernel, the first one first."""
    found = (attempt_of(tree, tree.nodes[number]) for number in tree.lineage(node))
    return tuple(attempt for attempt in found if attempt)


def edit_attempts(tree: Tree, node: int) -> tuple[Attempt, ...]:
    """Return the edits of a node that were tried, in the order of their proposal; without pending ones."""
    found = (edit_attempt(tree, tree.nodes[node], number) for number in range(len(tree.nodes[node].edits)))
    return tuple(attempt for attempt in found if attempt)


def attempt_of(tree: Tree, node: Node) -> Attempt | None:
    """Return the edit that made a node, and how it ended; None of the root and of a pending node."""
    if node.parent is None or node.edit is None:
        return None
    return edit_attempt(tree, tree.nodes[node.parent], node.edit)


def edit_title(tree: Tree, node: Node) -> str:
    """Return the title of the edit that made a node; `starting kernel` for the root."""
    edit = tree.made_by(node)
    return edit.title if edit is not None else STARTING_KERNEL


def run_seconds(evaluation: Evaluation) -> float | None:
    """Return seconds of one run, the geometric mean over the timed shapes; None where nothing was timed."""
    seconds = [timing.seconds for timing in evaluation.timings]
    if not seconds or min(seconds) <= 0:
        return None
    return statistics.geometric_mean(seconds)


def _step(tree: Tree, node: Node) -> PathStep | None:
    if node.evaluation is None or node.score is None:
        return None
    parent = None if node.parent is None else tree.nodes[node.parent]
    return PathStep(
        node=node.id,
        edit=tree.made_by(node),
        seconds=run_seconds(node.evaluation),
        speedup=node.score.speedup,
        gain=_gain(parent.score if parent else None, node.score),
        diagnosis=node.evaluation.diagnosis,
    )


def _gain(parent: Score | None, node: Score) -> float:
    return node.speedup / parent.speedup if parent and parent.speedup > 0 else 0.0


def edit_attempt(tree: Tree, node: Node, number: int) -> Attempt | None:
    """Return an edit of a node and how it ended; None while it waits or is pending."""
    edit, fate = node.edits[number], node.fates[number]
    if fate.reason:
        return _attempt(edit, Outcome.REJECTED, 0.0, fate.reason)
    if fate.node is None:
        return None
    made = tree.nodes[fate.node]
    if made.evaluation is None or made.score is None:
        return None
    gain = _gain(node.score, made.score)
    if fate.duplicate:
        message = f"The same kernel as node {made.id}, which was: {made.evaluation.outcome}."
        return _attempt(edit, Outcome.DUPLICATE, gain, message, made.id)
    return _attempt(edit, made.evaluation.outcome, gain, made.evaluation.message, made.id)


def _attempt(
    edit: EditRecord, outcome: Outcome, gain: float, message: str, node: int | None = None
) -> Attempt:
    return Attempt(edit.title, str(edit.category), outcome, gain, message, edit.proposer, node)
