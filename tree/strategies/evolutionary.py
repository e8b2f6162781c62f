"""An evolutionary search with MAP-Elites: the best kernel of each kind is a parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from mctskernel.tree.node import Node, Tree
from mctskernel.tree.strategies.strategy import Action, Generators, Step, expand_at_random, ready_nodes


class EvolutionaryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fraction `crossover` of new kernels combines two elites."""

    crossover: Annotated[float, Meta(ge=0, le=1)] = 0.5


class Evolutionary:
    """Parents are drawn from an archive with the best kernel of each kind.

    A kernel's kind is the set of factors that were decided on the way to it, and of categories of edits without
    factors. A mutation is a random edit of the parent. A crossover, the fraction `crossover` of attempts, is a random
    one of those edits that decide as another elite did, if there are any. When no elite is ready, the parent is drawn
    from all nodes that are.

    Sources: Mouret and Clune, "Illuminating search spaces by mapping elites", 2015; for kernels Wiedemann et al.,
    "KernelFoundry: Hardware-aware evolutionary GPU kernel optimization", 2026.
    """

    Options = EvolutionaryOptions

    def __init__(self, options: EvolutionaryOptions) -> None:
        self._options = options
        self._seen = 0
        self._kinds: dict[int, frozenset[str]] = {}
        self._elites: dict[frozenset[str], Node] = {}

    def step(self, tree: Tree, rng: Generators) -> Action | None:
        self._update(tree)
        nodes = ready_nodes(tree)
        if not nodes:
            return None
        generator = rng()
        parents = [node for node in self._elites.values() if node.ready] or nodes
        parent = parents[int(generator.integers(len(parents)))]
        mates = [node for node in self._elites.values() if node is not parent]
        if mates and generator.random() < self._options.crossover:
            mate = _decisions(tree, mates[int(generator.integers(len(mates)))])
            if inherited := _decided_alike(parent, mate):
                return Step(parent.id, inherited[int(generator.integers(len(inherited)))])
        return expand_at_random(parent, generator)

    def _update(self, tree: Tree) -> None:
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._seen :]):
            kind = self._kinds[node.id] = self._kind(tree, node)
            if kind not in self._elites or node.reward > self._elites[kind].reward:
                self._elites[kind] = node
        self._seen = len(tree.evaluated)

    def _kind(self, tree: Tree, node: Node) -> frozenset[str]:
        edit = tree.made_by(node)
        if edit is None or node.parent is None:
            return frozenset()
        return self._kinds[node.parent] | ({factor.name for factor in edit.factors} or {edit.category.value})


def _decisions(tree: Tree, node: Node) -> dict[str, float | str]:
    """What was decided on the way to a node: levels by the name of the factor."""
    factors = list(tree.nodes[0].kernel.factors)
    for number in tree.lineage(node.id)[1:]:
        edit = tree.made_by(tree.nodes[number])
        factors += edit.decisions if edit else ()
    return {factor.name: factor.level for factor in factors}


def _decided_alike(parent: Node, mate: Mapping[str, float | str]) -> list[int]:
    """The untried edits of the parent that decide everything as the mate does."""
    return [
        number
        for number in parent.untried
        if all(mate.get(factor.name) == factor.level for factor in parent.edits[number].decisions)
    ]
