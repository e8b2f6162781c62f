"""First play: what an untried edit is worth against the children that a node has.

Without it an edit is tried as soon as widening admits one more child; with it, it has to promise more than they do.
Source: Gelly and Wang, "Exploration exploitation in Go: UCT for Monte-Carlo Go", 2006 (first-play urgency).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mctskernel.tree.vector import Array


def at_once(expected: Array, reward: float) -> Array:  # noqa: ARG001 - a FirstPlay
    """More than any child."""
    return np.full(len(expected), np.inf)


def as_parent(expected: Array, reward: float) -> Array:
    """What the node itself got."""
    return np.full(len(expected), reward)


def as_estimated(expected: Array, reward: float) -> Array:  # noqa: ARG001 - a FirstPlay
    """What such edits did elsewhere makes one expect."""
    return expected


FirstPlay = Callable[[Array, float], Array]
"""Takes the rewards expected of a node's untried edits and the node's own; gives rewards."""

FIRST_PLAYS: Mapping[str, FirstPlay] = {"none": at_once, "parent": as_parent, "estimate": as_estimated}
