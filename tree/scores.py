"""Scores: which child of a node a walk goes to, by its worth and by how little is known of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array


@dataclass(frozen=True)
class Children:
    """What a score may look at, an element for each child that competes.

    `value` is normalised; `visits` are traversals of the edge, at least 1; `prior` sums to 1. Traversals in
    flight count as lost visits (virtual loss) in all but the prior. An untried edit that competes is the last, as
    if visited once.
    """

    value: Array
    visits: Array
    prior: Array
    parent_visits: float


@dataclass(frozen=True)
class UpperConfidence:
    """value + c * growth(N) * share(prior, n), with N the parent's visits and n the child's.

    `growth` rises with N; `share` takes one child or an array of them.
    """

    growth: Callable[[float], float]
    share: Callable[[Any, Any], Any]

    def __call__(self, children: Children, policy: Policy) -> Array:
        """The scores of some children, with c the policy's `exploration`."""
        weight = policy.exploration * self.growth(children.parent_visits)
        scores: Array = children.value + weight * self.share(children.prior, children.visits)
        return scores


uct = UpperConfidence(
    growth=lambda parent_visits: math.sqrt(math.log(parent_visits)),
    share=lambda prior, visits: 1 / np.sqrt(visits),  # noqa: ARG005
)
"""value + c * sqrt(ln N / n).

Source: Kocsis and Szepesvári, "Bandit based Monte-Carlo planning", 2006, with c free.
"""

puct = UpperConfidence(growth=math.sqrt, share=lambda prior, visits: prior / (1 + visits))
"""value + c * prior * sqrt(N) / (1 + n).

Source: Silver et al., "Mastering the game of Go without human knowledge", 2017.
"""

greedy = UpperConfidence(growth=lambda parent_visits: 0.0, share=lambda prior, visits: 0.0 * prior)  # noqa: ARG005
"""The value alone."""

SELECTIONS: Mapping[str, UpperConfidence] = {"uct": uct, "puct": puct, "greedy": greedy}
