"""What a surrogate predicted beside what came of it: where the model is wrong, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mctskernel.core.evaluation import Source
from mctskernel.report.comparison import rank_correlation
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import Step, trajectory


def prediction_sentence(step: Step) -> str:
    """What was predicted of the edit that led to a step, and whether that was right; empty without a prediction."""
    found = step.prediction
    if found is None or not found.gain:
        return ""
    low, high = (found.gain * math.exp(sign * found.sigma) for sign in (-1, 1))
    tie = ", a tie with its parent" if found.is_tie else ""
    wrong = ""
    if step.gain > 0 and abs(_miss(found, step.gain)) > 1:
        wrong = f" It came to {step.gain:.2f}x, {abs(_miss(found, step.gain)):.1f} standard deviations off."
    return f"Predicted: {found.gain:.2f}x ({low:.2f}x to {high:.2f}x){tie}.{wrong}"


def accuracy_sentences(tree: Tree) -> tuple[str, ...]:
    """How good the predictions of a search were, over the edits that were predicted and measured.

    Nothing for fewer than three, nor for a modelled search, where the model agrees with itself.
    """
    known = list(_measured(tree))
    predicted = np.array([step.prediction.gain for step in known if step.prediction])
    measured = np.array([step.gain for step in known])
    correlation = rank_correlation(predicted, measured)
    if math.isnan(correlation):
        return ()
    misses = [_miss(step.prediction, step.gain) for step in known if step.prediction]
    within = sum(abs(miss) <= 1 for miss in misses)
    furthest = known[int(np.argmax(np.abs(misses)))]
    return (
        f"Predictions of {len(known)} edits: rank correlation {correlation:.2f} with the gains measured, "
        f"{within} within one standard deviation.",
        f"Furthest off: node {furthest.node}. {prediction_sentence(furthest)}",
    )


def _measured(tree: Tree) -> Iterator[Step]:
    for node in tree.nodes:
        if node.prediction is None or not node.prediction.gain or node.evaluation is None:
            continue
        step = trajectory(tree, node.id).steps[-1]
        if node.evaluation.source is not Source.MODELLED and step.gain > 0:
            yield step


def _miss(found: PredictionRecord, gain: float) -> float:
    """Standard deviations between a gain and its prediction."""
    return math.log(gain / found.gain) / found.sigma if found.sigma > 0 else math.inf
