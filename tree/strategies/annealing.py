"""Simulated annealing: a walk that also accepts worse kernels, the less so the colder it gets."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mctskernel.tree.node import Node, Tree
from mctskernel.tree.strategies.strategy import Action, Generators, expand_at_random, ready_nodes

MOVES = 32
"""Moves between known kernels after which a walk that finds nothing to try continues at a random node."""


class AnnealingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`temperature`, in units of the reward, is multiplied by `cooling` each evaluation, and raised after `period`."""

    temperature: Annotated[float, Meta(ge=0)] = 0.3
    cooling: Annotated[float, Meta(ge=0, le=1)] = 0.97
    period: Annotated[int, Meta(ge=1)] = 100

    def after(self, evaluations: int) -> float:
        return self.temperature * self.cooling ** (evaluations % self.period)


class Annealing:
    """A walk over kernels and the edits that join them.

    A neighbour is drawn, each as likely: an untried edit, or a known kernel one edit away in either direction. An
    edit makes a kernel, and when its reward is known the walk moves there with probability min(1, exp(gain /
    temperature)); to a known kernel it moves at once, with the same probability and at no cost. Rewards are logarithms
    of time: a temperature of 0.1 accepts a loss of 10 % in 37 of 100 cases. A walk that finds nothing to try continues
    at a random node that is ready.

    Sources: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", 1983; acceptance by Metropolis et
    al., 1953.
    """

    Options = AnnealingOptions

    def __init__(self, options: AnnealingOptions) -> None:
        self._options = options
        self._position = 0
        self._seen = 0
        self._generator: np.random.Generator | None = None

    def step(self, tree: Tree, rng: Generators) -> Action | None:
        nodes = ready_nodes(tree)
        if not nodes:
            return None
        self._update(tree)
        generator = rng()
        found = _walk(tree, tree.nodes[self._position], self._options.after(tree.evaluations), generator)
        return expand_at_random(found or nodes[int(generator.integers(len(nodes)))], generator)

    def _update(self, tree: Tree) -> None:
        """Move by the evaluations that finished since."""
        self._generator = self._generator or np.random.default_rng(tree.seed)
        for number in range(self._seen, len(tree.evaluated)):
            node = tree.nodes[tree.evaluated[number]]
            gain = node.reward - tree.nodes[self._position].reward
            if self._generator.random() < _acceptance(gain, self._options.after(number)):
                self._position = node.id
        self._seen = len(tree.evaluated)


def _acceptance(gain: float, temperature: float) -> float:
    """The probability that a move of such a gain is accepted."""
    if gain >= 0 or temperature == 0:
        return float(gain >= 0)
    return math.exp(gain / temperature)


def _walk(tree: Tree, node: Node, temperature: float, generator: np.random.Generator) -> Node | None:
    """The node whose edit is tried next; None if the walk finds none.

    Rejected draws are skipped by drawing neighbours with their probability to be accepted. Source: Bortz, Kalos and
    Lebowitz, "A new algorithm for Monte Carlo simulation of Ising spin systems", 1975.
    """
    for _ in range(MOVES):
        if node.ready and not node.untried:
            return node
        known = _known_neighbours(tree, node)
        untried = len(node.untried) if node.ready else 0
        weights = [float(untried), *(_acceptance(each.reward - node.reward, temperature) for each in known)]
        if not (total := math.fsum(weights)):
            return None
        drawn = int(generator.choice(len(weights), p=np.array(weights) / total))
        if drawn == 0:
            return node
        node = known[drawn - 1]
    return None


def _known_neighbours(tree: Tree, node: Node) -> list[Node]:
    """Evaluated kernels that an edit of the node makes, or whose edit made it."""
    numbers = [] if node.parent is None else [node.parent]
    numbers += [fate.node for fate in node.fates if fate.node is not None and fate.node != node.id]
    return [tree.nodes[number] for number in dict.fromkeys(numbers) if tree.nodes[number].score is not None]
