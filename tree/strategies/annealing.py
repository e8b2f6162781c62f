"""Simulated annealing: walks that also accept worse kernels, the less so the colder it gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import expand_at_random, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Array

MOVES = 32
"""Steps over known kernels after which a walk that finds nothing to try is set down elsewhere."""


@dataclass
class Annealing:
    """`annealing_walkers` walks, in turn, over kernels and the edits that join them.

    A neighbour is drawn, each as likely: an edit that waits, or a known kernel one edit away in either direction. An
    edit makes a kernel, and when its reward comes it is accepted as the walk's position with probability
    min(1, exp(gain / temperature)); known ones are accepted likewise at once and cost nothing. Rewards being
    logarithms of time, a temperature of 0.1 accepts a loss of 10 % in 37 of 100 cases. It begins at
    `annealing_temperature`, is multiplied by `annealing_cooling` for each evaluation and begins again after
    `annealing_period` of them. While a walk's evaluation is in flight its next turn goes on from the position that it
    has. A walk that finds nothing to try is set down on a random node that is ready.

    Sources: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", 1983; acceptance by Metropolis et
    al., 1953.
    """

    _positions: list[int] = field(default_factory=list)
    _evaluated: int = 0
    _generator: np.random.Generator | None = None

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        if not len(open_nodes(tree)):
            return ()
        self._catch_up(tree)
        generator = rng()
        start = self._positions[_walker(tree, len(tree.nodes))]
        return expand_at_random(tree, _walk(tree, start, generator), generator)

    def _catch_up(self, tree: Tree) -> None:
        """Moves the walks by the evaluations that came since."""
        self._positions = self._positions or [0] * tree.policy.annealing_walkers
        self._generator = self._generator or np.random.default_rng(tree.seed)
        rewards = tree.node_statistics.reward
        for number, node in enumerate(tree.evaluated[self._evaluated :], start=self._evaluated):
            walker = _walker(tree, node)
            gain = rewards[node] - rewards[self._positions[walker]]
            if self._generator.random() < _acceptance(gain, _temperature(tree, number)):
                self._positions[walker] = node
        self._evaluated = len(tree.evaluated)


def _walker(tree: Tree, node: int) -> int:
    """The walk whose turn makes a node."""
    return (node - 1) % tree.policy.annealing_walkers if node else 0


def _temperature(tree: Tree, evaluations: int) -> float:
    policy = tree.policy
    return policy.annealing_temperature * policy.annealing_cooling ** (evaluations % policy.annealing_period)


def _acceptance(gains: Array, temperature: float) -> Array:
    """The probability that a move of such a gain is accepted."""
    losses = np.minimum(gains, 0)
    if temperature == 0:
        return np.where(losses < 0, 0.0, 1.0)
    with np.errstate(over="ignore"):
        accepted: Array = np.exp(losses / temperature)
    return accepted


def _walk(tree: Tree, position: int, generator: np.random.Generator) -> int:
    """The node whose edit comes next.

    Draws that are rejected are skipped: what is drawn next is drawn by the probability to be accepted. Source: Bortz,
    Kalos and Lebowitz, "A new algorithm for Monte Carlo simulation of Ising spin systems", 1975.
    """
    temperature = _temperature(tree, tree.evaluations)
    rewards = tree.node_statistics.reward.view
    for _ in range(MOVES):
        node = tree.nodes[position]
        if node.ready and not node.untried:
            return position
        known = _known_neighbours(tree, position)
        untried = len(node.untried) if node.ready else 0
        shares = untried + np.cumsum(_acceptance(rewards[known] - rewards[position], temperature))
        drawn = generator.random() * (shares[-1] if len(known) else untried)
        if drawn < untried:
            return position
        if drawn == 0:
            break
        position = int(known[np.searchsorted(shares, drawn, side="right")])
    return int(generator.choice(open_nodes(tree)))


def _known_neighbours(tree: Tree, node: int) -> Array:
    """Evaluated kernels that an edit of the node's makes, or whose edit made it."""
    found = tree.nodes[node]
    made = tree.edge_statistics.child.view[found.edges.view]
    neighbours: Array = np.concatenate([np.array(found.sources, "int64"), made])
    known: Array = neighbours[tree.node_statistics.reward.view[neighbours] > -np.inf]
    return known
