"""Trajectories: the path from the root to a node with the evidence of every edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.evaluation import Diagnosis, Evaluation, Outcome, Score
from mctskernel.core.proposer import Attempt
from mctskernel.tree.events import EditRecord, PredictionRecord
from mctskernel.tree.evidence import FiledScore
from mctskernel.tree.node import Node, Tree

STARTING_KERNEL = "starting kernel"
"""The title of the root, which no edit made."""


@dataclass(frozen=True)
class Step:
    """An evaluated node and the edit that led to it (None for the root).

    `seconds` is None where nothing was timed; `gain` is the parent's time over the node's, 0 if unknown.
    `before` is the parent's diagnosis, `after` the node's own; `prediction` is what a surrogate said of it.
    """

    node: int
    edit: EditRecord | None
    outcome: Outcome
    message: str
    seconds: float | None
    speedup: float
    gain: float
    reward: float
    terms: Mapping[str, float]
    before: Diagnosis | None
    after: Diagnosis | None
    prediction: PredictionRecord | None = None

    @property
    def attempt(self) -> Attempt:
        """The step as a proposer is told of it."""
        if self.edit is None:
            return Attempt(STARTING_KERNEL, "", self.outcome, self.gain, self.message)
        return _attempt(self.edit, self.outcome, self.gain, self.message)


@dataclass(frozen=True)
class Trajectory:
    """Steps from the root on."""

    steps: tuple[Step, ...]


def trajectory(tree: Tree, node: int) -> Trajectory:
    """The steps to a node; the node itself is left out while its evaluation is in flight."""
    lineage = (tree.nodes[number] for number in tree.lineage(node))
    return Trajectory(tuple(step for each in lineage if (step := _step(tree, each))))


def lineage_attempts(tree: Tree, node: int) -> tuple[Attempt, ...]:
    """The edits that made a node's kernel, the first one first."""
    return tuple(step.attempt for step in trajectory(tree, node).steps if step.edit)


def edit_attempts(tree: Tree, node: int) -> tuple[Attempt, ...]:
    """The edits of a node that were tried, in the order of their proposal; without those in flight."""
    found = (_edit_attempt(tree, tree.nodes[node], number) for number in range(len(tree.nodes[node].edits)))
    return tuple(attempt for attempt in found if attempt)


def attempt_of(tree: Tree, node: Node) -> Attempt | None:
    """The edit that made a node, and how it ended; None of the root and of a node that is in flight."""
    if node.parent is None or node.edit is None:
        return None
    return _edit_attempt(tree, tree.nodes[node.parent], node.edit)


def edit_title(tree: Tree, node: Node) -> str:
    """The title of the edit that made a node; `starting kernel` for the root."""
    if node.parent is None or node.edit is None:
        return STARTING_KERNEL
    return tree.nodes[node.parent].edits[node.edit].title


def run_seconds(evaluation: Evaluation) -> float | None:
    """Seconds of one run, the geometric mean over the timed shapes; None where nothing was timed."""
    seconds = [timing.seconds for timing in evaluation.timings]
    if not seconds or min(seconds) <= 0:
        return None
    return math.exp(math.fsum(map(math.log, seconds)) / len(seconds))


def _step(tree: Tree, node: Node) -> Step | None:
    if node.evaluation is None or node.score is None:
        return None
    parent = None if node.parent is None else tree.nodes[node.parent]
    return Step(
        node=node.id,
        edit=None if parent is None or node.edit is None else parent.edits[node.edit],
        outcome=node.evaluation.outcome,
        message=node.evaluation.message,
        seconds=run_seconds(node.evaluation),
        speedup=node.score.speedup,
        gain=_gain(parent.score if parent else None, node.score),
        reward=node.score.reward,
        terms=node.score.terms,
        before=parent.evaluation.diagnosis if parent and parent.evaluation else None,
        after=node.evaluation.diagnosis,
        prediction=node.prediction,
    )


def _gain(parent: Score | FiledScore | None, node: Score | FiledScore) -> float:
    return node.speedup / parent.speedup if parent and parent.speedup > 0 else 0.0


def _edit_attempt(tree: Tree, node: Node, number: int) -> Attempt | None:
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
        message = f"the same kernel as node {made.id}, which was: {made.evaluation.outcome}"
        return _attempt(edit, Outcome.DUPLICATE, gain, message)
    return _attempt(edit, made.evaluation.outcome, gain, made.evaluation.message)


def _attempt(edit: EditRecord, outcome: Outcome, gain: float, message: str) -> Attempt:
    return Attempt(edit.title, str(edit.category), outcome, gain, message, edit.proposer)
