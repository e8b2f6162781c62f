"""Rollouts: short lines of edits that nobody evaluates, and what nodes would be worth if these came true.

A line begins at a node's kernel, and a surrogate prices the kernels on it. The greatest gain that it predicts is what
the node's rollout comes to, on top of the node's own reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np

from mctskernel.tree.backup import VALUES
from mctskernel.tree.node import NodeStatistics, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array, Vector


def no_edit(priors: Array, rng: np.random.Generator) -> int | None:  # noqa: ARG001 - a Rollout
    """None: there are no rollouts."""
    return None


def drawn(priors: Array, rng: np.random.Generator) -> int | None:
    """An edit drawn with its prior as weight."""
    return int(rng.choice(len(priors), p=priors / priors.sum()))


def greatest(priors: Array, rng: np.random.Generator) -> int | None:  # noqa: ARG001 - a Rollout
    """The edit with the greatest prior, the first of equals."""
    return int(priors.argmax())


Rollout = Callable[[Array, np.random.Generator], int | None]
"""Chooses the next edit of a line by the priors of those that there are, at least one."""

ROLLOUTS: Mapping[str, Rollout] = {"none": no_edit, "sampled": drawn, "greedy": greatest}


def rolls_out(policy: Policy) -> bool:
    """Whether rollouts mean anything to the search."""
    return policy.strategy == "mcts" and policy.rollout != "none" and policy.rollout_weight > 0


class Prospects:
    """What nodes would be worth if all rollouts of one tree had come true, as of the last `follow`.

    What a rollout comes to is backed up like a reward, in place of the node's own. A node without a rollout counts for
    what it got.
    """

    def __init__(self, policy: Policy) -> None:
        self._value = VALUES[policy.value]
        self._weight = policy.rollout_weight
        self._seen = 0
        self._gained, self._greatest = Vector("float64"), Vector("float64")

    def follow(self, tree: Tree) -> None:
        """Takes in the nodes and rollouts that are new since the last call."""
        while len(self._gained) < len(tree.nodes):
            self._gained.append(0.0)
            self._greatest.append(-math.inf)
        for node, gain in islice(tree.rollouts.items(), self._seen, None):
            score = tree.nodes[node].score
            if score is not None and gain > 1:
                path = tree.path_to(node)
                self._gained.view[path] += math.log(gain)
                greatest = self._greatest.view
                greatest[path] = np.maximum(greatest[path], score.reward + math.log(gain))
        self._seen = len(tree.rollouts)

    def mixed(self, tree: Tree, children: Array, worths: Array) -> Array:
        """(1 - w) * worth + w * prospect, for some children that were visited, with w the policy's `rollout_weight`.

        Source: Silver et al., "Mastering the game of Go with deep neural networks and tree search", 2016, which mixes a
        value and the outcome of a rollout so at every leaf (doi 10.1038/nature16961).
        """
        known = tree.node_statistics
        prospects = NodeStatistics(
            visits=Vector.of(known.visits.view[children]),
            reward_sum=Vector.of(known.reward_sum.view[children] + self._gained.view[children]),
            reward_max=Vector.of(np.maximum(known.reward_max.view[children], self._greatest.view[children])),
        )
        prospect = self._value(prospects, np.arange(len(children)))
        mixture: Array = (1 - self._weight) * worths + self._weight * prospect
        return mixture
