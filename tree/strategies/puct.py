"""Monte Carlo tree search without the edit model, to compare with: PUCT with the proposers' priors, and plain UCT."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mctskernel.tree.node import Node, Tree
from mctskernel.tree.strategies.strategy import Action, Generators, expand

Array = npt.NDArray[Any]

NotNegative = Annotated[float, Meta(ge=0)]


class PuctOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`exploration` is the weight of U; `value` says which is a node's: the greatest reward below it or the mean.

    A node with n visits may have `widening_factor` * n ** `widening_exponent` children.
    """

    exploration: NotNegative = 0.5
    value: Literal["max", "mean"] = "max"
    widening_factor: Annotated[float, Meta(gt=0)] = 2.0
    widening_exponent: NotNegative = 0.5


class UctOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`exploration` is the weight of U."""

    exploration: NotNegative = 0.5


class Puct:
    """Q + U with U = exploration * P * sqrt(N) / (1 + n), progressive widening, the proposers' priors.

    A node is expanded, its edit of the greatest prior first, while it has fewer children than its visits allow. Then
    it goes on to the child with the greatest Q + U among those below which something can be tried. Q is the value
    between the least and the greatest reward of the tree. Pending evaluations count as visits for widening.

    Sources: Silver et al., "Mastering the game of Go without human knowledge", 2017; Schrittwieser et al., "Mastering
    Atari, Go, chess and shogi by planning with a learned model", 2020, equation 5; Couetoux et al., "Continuous upper
    confidence trees", 2011.
    """

    Options: type[msgspec.Struct] = PuctOptions

    def __init__(self, options: PuctOptions) -> None:
        self._options = options

    def step(self, tree: Tree, rng: Generators) -> Action | None:  # noqa: ARG002 - a Strategy
        if not tree.nodes or not tree.nodes[0].open:
            return None
        node = tree.nodes[0]
        while not (node.ready and len(node.children) < self._limit(node)):
            child = self._next(tree, node)
            if child is None:
                break
            node = child
        return expand(node)

    def _next(self, tree: Tree, node: Node) -> Node | None:
        """The child with the greatest Q + U, of those below which something is ready, the oldest of equals."""
        children = [child for number in node.children if (child := tree.nodes[number]).open]
        if not children:
            return None
        visits = np.array([child.visits for child in children])
        weights = np.array([node.edits[child.edit or 0].prior for child in children])
        priors = weights / weights.sum()
        span = tree.high - tree.low
        values = np.array([self._value(child) for child in children])
        values = (values - tree.low) / span if span > 0 else np.full(len(values), 0.5)
        bonuses = self._options.exploration * self._bonus(priors, visits, node.visits)
        return children[int(np.argmax(values + bonuses))]

    def _limit(self, node: Node) -> float:
        visits = node.visits + node.in_flight
        return self._options.widening_factor * float(visits**self._options.widening_exponent)

    def _value(self, node: Node) -> float:
        return node.reward_max if self._options.value == "max" else node.reward_sum / node.visits

    def _bonus(self, priors: Array, visits: Array, parent_visits: int) -> Array:
        bonus: Array = priors * math.sqrt(parent_visits) / (1 + visits)
        return bonus


class Uct(Puct):
    """UCB1 over mean rewards, U = exploration * sqrt(ln N / n); all edits of a node come before those below it.

    Source: Kocsis and Szepesvári, "Bandit based Monte-Carlo planning", 2006.
    """

    Options = UctOptions

    def __init__(self, options: UctOptions) -> None:
        super().__init__(PuctOptions(options.exploration, "mean", math.inf))

    def _bonus(self, priors: Array, visits: Array, parent_visits: int) -> Array:  # noqa: ARG002 - by visits alone
        bonus: Array = np.sqrt(math.log(parent_visits) / visits)
        return bonus
