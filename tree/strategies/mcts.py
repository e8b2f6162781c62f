"""Monte Carlo tree search: a walk from the root by the statistics of the nodes chooses the node to expand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mctskernel.tree.effects import Effects
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.strategies.strategy import Generators, Propose, Step, next_edit

Array = npt.NDArray[Any]


def uct(prior: Array, visits: Array, parent_visits: int) -> Array:  # noqa: ARG001 - a Selection
    """sqrt(ln N / n). Source: Kocsis and Szepesvári, "Bandit based Monte-Carlo planning", 2006."""
    bonus: Array = np.sqrt(math.log(parent_visits) / visits)
    return bonus


def puct(prior: Array, visits: Array, parent_visits: int) -> Array:
    """prior * sqrt(N) / (1 + n). Source: Silver et al., "Mastering the game of Go without human knowledge", 2017."""
    bonus: Array = prior * math.sqrt(parent_visits) / (1 + visits)
    return bonus


Selection = Callable[[Array, Array, int], Array]
"""The exploration bonus of children, from their priors (which sum to 1) and visits n, and the parent's visits N."""

SELECTIONS: Mapping[str, Selection] = {"puct": puct, "uct": uct}


def mean(node: Node) -> float:
    """The mean reward of the node and its descendants."""
    return node.reward_sum / node.visits


def maximum(node: Node) -> float:
    """The greatest reward of the node and its descendants."""
    return node.reward_max


Value = Callable[[Node], float]
"""The value of a node that was visited, in units of the reward."""

VALUES: Mapping[str, Value] = {"max": maximum, "mean": mean}

PRIORS = ("thompson", "given")
"""Weights of edits: by effects that are drawn anew for each step (`mctskernel.tree.effects`), or as proposed."""


class Candidate(NamedTuple):
    """A child that selection can go to: n, Q from 0 to 1, P, and U, the weighted exploration bonus."""

    node: Node
    visits: int
    value: float
    prior: float
    bonus: float

    @property
    def score(self) -> float:
        """Q + U."""
        return self.value + self.bonus


class MonteCarlo:
    """Selection by `policy.selection`, progressive widening, backup of `policy.value`.

    A node is expanded while it has fewer children than its visits allow. Then the walk goes on to the child with the
    greatest Q + U among those below which something can be tried. Q is the value between the least and the greatest
    reward of the tree (Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with a learned model",
    2020, equation 5). Pending evaluations count as visits for widening.

    Source of progressive widening: Couetoux et al., "Continuous upper confidence trees", 2011.
    """

    def __init__(self) -> None:
        self._effects = Effects()

    def policy(self, tree: Tree) -> Policy:
        """The choices that count: those of the tree's policy."""
        return tree.policy

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:  # noqa: ARG002 - a Strategy
        """The next step, or None."""
        if not tree.nodes or not tree.nodes[0].open:
            return None
        self.update(tree)
        node = tree.nodes[0]
        while not (node.ready and len(node.children) < self.limit(tree, node)):
            children = _open_children(tree, node)
            if not children:
                break
            _, values, _, bonuses = self._terms(tree, node, children)
            node = children[int(np.argmax(values + bonuses))]
        if not node.untried:
            return Propose(node.id)
        return Step(node.id, next_edit(tree, node, self.ranked(tree, node)))

    def update(self, tree: Tree) -> None:
        """Learn what has happened since the last call."""
        if self.policy(tree).prior == "thompson":
            self._effects.update(tree)

    def limit(self, tree: Tree, node: Node) -> float:
        """How many children a node may have."""
        policy = self.policy(tree)
        return policy.widening_factor * float((node.visits + node.in_flight) ** policy.widening_exponent)

    def candidates(self, tree: Tree, node: Node) -> list[Candidate]:
        """The children of a node below which something is ready, in order of creation."""
        children = _open_children(tree, node)
        if not children:
            return []
        rows = zip(*(term.tolist() for term in self._terms(tree, node, children)), strict=True)
        return [Candidate(child, *row) for child, row in zip(children, rows, strict=True)]

    def _terms(self, tree: Tree, node: Node, children: list[Node]) -> tuple[Array, Array, Array, Array]:
        """Of some children of a node n, Q, P and U."""
        policy = self.policy(tree)
        weights = self.weights(tree, node, [child.edit or 0 for child in children])
        priors = weights / weights.sum()
        visits = np.array([child.visits for child in children])
        value = VALUES[policy.value]
        values = np.array([value(child) for child in children])
        span = tree.high - tree.low
        values = (values - tree.low) / span if span > 0 else np.full(len(values), 0.5)
        bonuses = policy.exploration * SELECTIONS[policy.selection](priors, visits, node.visits)
        return visits, values, priors, bonuses

    def ranked(self, tree: Tree, node: Node) -> list[int]:
        """The untried edits of a node, the greatest weight first, of equals the oldest."""
        untried = sorted(node.untried)
        order = np.argsort(-self.weights(tree, node, untried), kind="stable")
        return [untried[place] for place in order]

    def weights(self, tree: Tree, node: Node, edits: Sequence[int]) -> Array:
        """The weights of some edits of a node, by their numbers, relative to each other.

        With the prior "given" they are the proposer's, with "thompson" reweighted by effects that are drawn.
        """
        if self.policy(tree).prior == "given":
            return np.array([node.edits[number].prior for number in edits])
        return self._effects.weights(tree, node, edits)


def _open_children(tree: Tree, node: Node) -> list[Node]:
    """The children below which something is ready; each was evaluated, or has a descendant that was."""
    nodes = tree.nodes
    return [child for number in node.children if (child := nodes[number]).open]


class PlainUct(MonteCarlo):
    """UCB1 over mean rewards; every edit of a node is tried before the walk goes on below it.

    Source: Kocsis and Szepesvári, 2006.
    """

    def policy(self, tree: Tree) -> Policy:
        """The tree's policy with the choices of plain UCT."""
        return msgspec.structs.replace(
            tree.policy, selection="uct", value="mean", prior="given", widening_factor=math.inf
        )
