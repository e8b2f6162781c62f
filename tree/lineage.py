"""Paths as arrays. Those of the tree itself, the lineages, share most of their nodes and are made from one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mctskernel.tree.vector import Array

if TYPE_CHECKING:
    from mctskernel.tree.node import Node


class Path(NamedTuple):
    """Nodes from the root on, and the edges between them, which are one fewer."""

    nodes: Array
    edges: Array


class Lineages:
    """The lineages of one tree's nodes: from the root to a node, each made by an edit of the one before.

    The last one that was asked for is kept: what it shares with the next isn't walked again.
    """

    def __init__(self) -> None:
        self._nodes, self._edges = np.zeros((2, 0), np.int64)
        self._length = 0

    def of(self, nodes: Sequence[Node], last: int) -> Path:
        """The lineage of a node, which is its last; overwritten by the next one that is asked for."""
        node = nodes[last]
        depth, known, length = node.depth, self._length, node.depth + 1
        # None, should it be interrupted half-way.
        self._length = 0
        if length > len(self._nodes):
            self._nodes, self._edges = (np.resize(each, 2 * length) for each in (self._nodes, self._edges))
        ids, edges = self._nodes.data, self._edges.data
        while depth >= known or ids[depth] != node.id:
            ids[depth] = node.id
            if node.parent is None or node.edge is None:
                break
            depth -= 1
            edges[depth] = node.edge
            node = nodes[node.parent]
        self._length = length
        return Path(self._nodes[:length], self._edges[: length - 1])
