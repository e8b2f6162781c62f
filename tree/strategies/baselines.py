"""Simple strategies to compare with: greedy refinement, best of N, random search, beam search, an epsilon-net."""

from __future__ import annotations

from bisect import insort
from typing import Annotated

import msgspec
from msgspec import Meta

from mctskernel.tree.node import Node, Tree
from mctskernel.tree.strategies.strategy import (
    Action,
    Generators,
    expand,
    expand_at_random,
    fastest,
    ready_nodes,
)


class Greedy:
    """Edits of the node with the greatest reward among those that are ready.

    So it leaves a kernel for the first better one, and returns to the next best when the best has no edits left.
    Source: iterative refinement in Ouyang et al., "KernelBench: Can LLMs write efficient GPU kernels?", 2025.
    """

    def step(self, tree: Tree, rng: Generators) -> Action | None:  # noqa: ARG002 - a Strategy
        nodes = ready_nodes(tree)
        return expand(fastest(nodes)) if nodes else None


class BestOfN:
    """Edits of the root alone, as long as there are any: repeated sampling (Ouyang et al., 2025)."""

    def step(self, tree: Tree, rng: Generators) -> Action | None:  # noqa: ARG002 - a Strategy
        return expand(tree.nodes[0]) if tree.nodes and tree.nodes[0].ready else None


class RandomSearch:
    """A random edit of a random ready node (Bergstra and Bengio, 2012)."""

    def step(self, tree: Tree, rng: Generators) -> Action | None:
        nodes = ready_nodes(tree)
        if not nodes:
            return None
        generator = rng()
        return expand_at_random(nodes[int(generator.integers(len(nodes)))], generator)


class BeamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each of the best `width` nodes of a depth makes `edits` new kernels."""

    width: Annotated[int, Meta(ge=1)] = 4
    edits: Annotated[int, Meta(ge=1)] = 4


class BeamSearch:
    """Level by level from the root, each of the best `width` nodes of a level makes `edits` new kernels.

    A level is the nodes of one depth, and the next one waits for its last evaluation. When no level has anything left,
    another pass from the root is twice, then three times as wide and as thorough, and so on until everything is tried.

    Sources: Reddy, "Speech understanding systems", 1977; Zhang, "Complete anytime beam search", 1998.
    """

    Options = BeamOptions

    def __init__(self, options: BeamOptions) -> None:
        self._options = options
        self._seen = 0
        self._levels: list[list[tuple[float, int, int]]] = []

    def step(self, tree: Tree, rng: Generators) -> Action | None:  # noqa: ARG002 - a Strategy
        self._update(tree)
        nodes = ready_nodes(tree)
        if not nodes:
            return None
        ranks = {number: rank for level in self._levels for rank, (*_, number) in enumerate(level)}
        passes = {node.id: self._pass(ranks, node, len(node.children)) for node in nodes}
        unsettled = list(self._unsettled(tree, ranks))
        now = min([*passes.values(), *(its_pass for its_pass, _ in unsettled)])
        settled = min((depth for its_pass, depth in unsettled if its_pass <= now), default=len(self._levels))
        members = [node for node in nodes if passes[node.id] == now and node.depth < settled]
        if not members:
            return None
        return expand(min(members, key=lambda node: (node.depth, ranks[node.id])))

    def _update(self, tree: Tree) -> None:
        """Rank the nodes of each level: the greatest reward first, of equals the one that was evaluated first."""
        for order, number in enumerate(tree.evaluated[self._seen :], self._seen):
            node = tree.nodes[number]
            while node.depth >= len(self._levels):
                self._levels.append([])
            insort(self._levels[node.depth], (-node.reward, order, number))
        self._seen = len(tree.evaluated)

    def _pass(self, ranks: dict[int, int], node: Node, children: int) -> int:
        """The pass in which a node makes its next kernel when it has made so many."""
        return max(children // self._options.edits, ranks[node.id] // self._options.width)

    def _unsettled(self, tree: Tree, ranks: dict[int, int]) -> list[tuple[int, int]]:
        """Of what is pending: the pass that it belongs to, and the depth whose ranking waits for it."""
        found = []
        for node in map(tree.nodes.__getitem__, tree.pending):
            if node.parent is not None:
                parent = tree.nodes[node.parent]
                birth = parent.children.index(node.id)
                found.append((self._pass(ranks, parent, birth), node.depth))
        asked = [tree.nodes[number] for number in tree.requested]
        found += [(self._pass(ranks, node, len(node.children)), node.depth + 1) for node in asked]
        return found


class EpsilonNetOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels whose rewards differ by at most `radius` are one; the fraction `exploration` is of a random node."""

    radius: Annotated[float, Meta(ge=0)] = 0.01
    exploration: Annotated[float, Meta(ge=0, le=1)] = 0.1


class EpsilonNet:
    """Edits of the best node of a net; the fraction `exploration` of attempts goes to a random node.

    A kernel joins the net when its reward is known, unless that of an earlier member is within `radius`. When no
    member is ready, the best node of all is taken. Rewards are logarithms of time: a radius of 0.01 is 1 % of it.

    Source: Ren, Nie, Xie and Cheng, "POLCA: Stochastic generative optimization with LLM", 2026, where the distance is
    that of embeddings of the source.
    """

    Options = EpsilonNetOptions

    def __init__(self, options: EpsilonNetOptions) -> None:
        self._options = options
        self._seen = 0
        self._members: list[Node] = []

    def step(self, tree: Tree, rng: Generators) -> Action | None:
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._seen :]):
            if all(abs(node.reward - other.reward) > self._options.radius for other in self._members):
                self._members.append(node)
        self._seen = len(tree.evaluated)
        nodes = ready_nodes(tree)
        if not nodes:
            return None
        generator = rng()
        if generator.random() < self._options.exploration:
            return expand(nodes[int(generator.integers(len(nodes)))])
        return expand(fastest([node for node in self._members if node.ready] or nodes))
