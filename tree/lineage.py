"""Paths as arrays. Those of the tree itself, the lineages, share most of their nodes and are made from one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mctskernel.tree.vector import Array

if TYPE_CHECKING:
    from mctskernel.tree.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Nodes from the root on, and the edges between them, which are one fewer."""

    nodes: Array
    edges: Array


class Lineages:
    """The lineages of one tree's nodes: from the root to a node, each made by an edit of the one before.

    The last one that was asked for is kept: what it shares with the next needn't be walked again.
    """

    def __init__(self) -> None:
        self._last = Path(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def of(self, nodes: Sequence[Node], last: int) -> Path:
        """The lineage of a node, which is its last."""
        known = self._last
        below: list[Node] = []
        above: int | None = last
        while above is not None and not _passes(known, node := nodes[above]):
            below.append(node)
            above = node.parent
        shared = 0 if above is None else nodes[above].depth + 1
        if below or shared < len(known.nodes):
            below.reverse()
            ids = np.array([node.id for node in below], np.int64)
            edges = np.array([node.edge for node in below if node.edge is not None], np.int64)
            self._last = Path(
                np.concatenate((known.nodes[:shared], ids)),
                np.concatenate((known.edges[: max(shared - 1, 0)], edges)),
            )
        return self._last


def _passes(path: Path, node: Node) -> bool:
    return node.depth < len(path.nodes) and path.nodes.item(node.depth) == node.id
