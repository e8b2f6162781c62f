"""The router: which expert is asked, learnt from what the edits of each came to.

Thompson sampling for one-dimensional exponential families (Korda, Kaufmann and Munos, NeurIPS 2013): the gain of an
edit, as a logarithm and 0 for a failure, counts as exponentially distributed, whose mean has an inverse-gamma
posterior. An expert's draw from its posterior is multiplied by how much of the kernel's time its field explains, so
that what binds this kernel still counts after a hundred others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.evaluation import Bottleneck, Diagnosis

PRIOR_COUNT = 3.0
PRIOR_LOG_GAIN = 0.1
"""What is believed of each before anything is known: as many observations, with a mean of this."""

WEIGHT = 0.25
"""What an edit counts as an observation: gains are rarer and larger than exponential ones, and alike in a reply."""

RELEVANCE = 3.0
"""How many times as promising an expert is when its field explains all of a kernel's time and not nothing."""


@dataclass(frozen=True)
class Arm:
    """Somebody who can be asked: the name in the standings, and the bottlenecks that are in their field.

    None at all: neither good nor bad at anything.
    """

    name: str
    relieves: frozenset[Bottleneck] = frozenset()


def choose(
    arms: Sequence[Arm],
    standings: Mapping[str, Sequence[float]],
    diagnosis: Diagnosis | None,
    count: int,
    rng: np.random.Generator,
) -> tuple[Arm, ...]:
    """The `count` arms with the greatest draws, the greatest first; all if there are no more.

    `standings` are logarithms of gains, 0 or more, by arm.
    """
    draws = [draw(standings.get(arm.name, ()), rng) * relevance(arm, diagnosis) for arm in arms]
    ranked = sorted(range(len(arms)), key=lambda place: -draws[place])
    return tuple(arms[place] for place in ranked[:count])


def draw(log_gains: Sequence[float], rng: np.random.Generator) -> float:
    """A mean gain, as a logarithm, drawn from its posterior."""
    shape = PRIOR_COUNT + 1 + WEIGHT * len(log_gains)
    total = PRIOR_COUNT * PRIOR_LOG_GAIN + WEIGHT * sum(log_gains)
    return float(total / rng.gamma(shape))


def relevance(arm: Arm, diagnosis: Diagnosis | None) -> float:
    """From 1 to RELEVANCE, with the part of the kernel's time that lies in an arm's field."""
    causes = diagnosis.causes if diagnosis is not None else ()
    explained = sum(cause.share for cause in causes)
    if explained <= 0 or not arm.relieves:
        return (1.0 + RELEVANCE) / 2
    own = sum(cause.share for cause in causes if cause.bottleneck in arm.relieves)
    return 1.0 + (RELEVANCE - 1.0) * own / explained
