"""Estimates: what the kernels that a node's edits make are worth, judged by what such edits did elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.edit_statistics import EditStatistics
from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array


def by_gain(statistics: EditStatistics, kinds: Array, reward: float, policy: Policy) -> Array:
    """The node's own reward, and on top of it what edits of the kind gained."""
    return reward + statistics.gain(kinds, policy.shrinkage)


def by_amaf(statistics: EditStatistics, kinds: Array, reward: float, policy: Policy) -> Array:  # noqa: ARG001
    """The mean reward of the kernels in which such an edit is in effect, whatever the node's own (AMAF).

    Source: Gelly and Silver, "Monte-Carlo tree search and rapid action value estimation in computer Go", 2011, section
    4.1, over the whole tree instead of below the node.
    """
    return statistics.reward(kinds, policy.shrinkage)


Estimate = Callable[[EditStatistics, Array, float, Policy], Array]
"""Takes the kinds of some edits of a node and the node's own reward; gives rewards."""

ESTIMATES: Mapping[str, Estimate] = {"gain": by_gain, "amaf": by_amaf}
