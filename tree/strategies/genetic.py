"""A genetic search with MAP-Elites: the best kernel of each kind is a parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mctskernel.tree.edit_model.descriptions import factors_of
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import expand_at_random, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Vector


@dataclass
class Genetic:
    """Parents are drawn from an archive that holds the best kernel of each kind, each as likely.

    A kernel's kind is the set of what was decided on the way to it: names of factors, and categories of edits without
    factors. A mutation is an edit of the parent, each as likely. A crossover, the share `genetic_crossover` of
    attempts, is one of those that decide as another elite did, if there are any. When no elite is ready, the parent is
    drawn from all nodes that are.

    Sources: Mouret and Clune, "Illuminating search spaces by mapping elites", 2015; of kernels in Wiedemann et al.,
    "KernelFoundry: Hardware-aware evolutionary GPU kernel optimization", 2026.
    """

    _evaluated: int = 0
    _kinds: dict[int, frozenset[str]] = field(default_factory=dict)
    _cells: dict[frozenset[str], int] = field(default_factory=dict)
    _elites: Vector = field(default_factory=lambda: Vector("int64"))

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        self._catch_up(tree)
        nodes = open_nodes(tree)
        if not len(nodes):
            return ()
        generator = rng()
        elites = self._elites.view
        parents = elites[tree.node_statistics.open.view[elites]]
        parent = int(generator.choice(parents if len(parents) else nodes))
        mates = elites[elites != parent]
        if len(mates) and generator.random() < tree.policy.genetic_crossover:
            inherited = _decided_alike(tree, parent, _decisions(tree, int(generator.choice(mates))))
            if inherited:
                return (Step(tuple(tree.lineage(parent)), int(generator.choice(inherited))),)
        return expand_at_random(tree, parent, generator)

    def _catch_up(self, tree: Tree) -> None:
        rewards = tree.node_statistics.reward
        for node_id in tree.evaluated[self._evaluated :]:
            kind = self._kinds[node_id] = self._kind(tree, node_id)
            if kind not in self._cells:
                self._cells[kind] = len(self._elites)
                self._elites.append(node_id)
            elif rewards[node_id] > rewards[self._elites[self._cells[kind]]]:
                self._elites[self._cells[kind]] = node_id
        self._evaluated = len(tree.evaluated)

    def _kind(self, tree: Tree, node_id: int) -> frozenset[str]:
        node = tree.nodes[node_id]
        if node.parent is None or node.edit is None:
            return frozenset()
        edit = tree.nodes[node.parent].edits[node.edit]
        names = {factor.name for factor in edit.factors} or {edit.category.value}
        return self._kinds[node.parent] | names


def _decisions(tree: Tree, node: int) -> dict[str, float | str]:
    """What was decided on the way to a node, and how: levels by the name of the factor."""
    factors = list(tree.nodes[0].kernel.factors)
    for each in tree.lineage(node)[1:]:
        child = tree.nodes[each]
        if child.parent is not None and child.edit is not None:
            factors += factors_of(tree.nodes[child.parent].edits[child.edit])
    return {factor.name: factor.level for factor in factors}


def _decided_alike(tree: Tree, parent: int, mate: Mapping[str, float | str]) -> list[int]:
    """The untried edits of the parent that decide everything as the mate does."""
    node = tree.nodes[parent]
    return [
        number
        for number in node.untried
        if all(mate.get(factor.name) == factor.level for factor in factors_of(node.edits[number]))
    ]
