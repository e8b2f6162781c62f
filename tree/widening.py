"""Widening: how many children a node may have before selection goes on below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mctskernel.tree.policy import Policy


def progressive(visits: int, policy: Policy) -> float:
    """factor * visits ** exponent, rounded up.

    Source: Couetoux et al., "Continuous upper confidence trees", 2011.
    """
    return math.ceil(policy.widening_factor * math.pow(visits, policy.widening_exponent))


def fixed(visits: int, policy: Policy) -> float:  # noqa: ARG001
    """The factor, however often the node was visited."""
    return policy.widening_factor


def unlimited(visits: int, policy: Policy) -> float:  # noqa: ARG001
    """Every edit is tried before selection goes on below, as plain UCT does."""
    return math.inf


Widening = Callable[[int, Policy], float]

WIDENINGS: Mapping[str, Widening] = {"progressive": progressive, "fixed": fixed, "unlimited": unlimited}
