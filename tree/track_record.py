"""Track record: what the edits of each proposer came to in one search, and which of them gained most."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from mctskernel.core.proposer import Attempt
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import attempt_of

KEPT = 64
"""Gains that are kept, the greatest: enough to leave some when those of one lineage are taken away."""


class TrackRecord:
    """Follows one tree; each evaluation is looked at once. `best_speedup` is of what isn't quarantined."""

    def __init__(self) -> None:
        self.best_speedup = 1.0
        self._seen = 0
        self._log_gains: dict[str, list[float]] = {}
        self._greatest: list[tuple[float, int]] = []

    def follow(self, tree: Tree) -> None:
        """Takes in the evaluations that came since the last call."""
        for number in tree.evaluated[self._seen :]:
            self._take_in(tree, tree.nodes[number])
        self._seen = len(tree.evaluated)

    def standings(self) -> Mapping[str, tuple[float, ...]]:
        """By proposer, the logarithms of the gains of its edits as they were evaluated; 0 where nothing was gained."""
        return {name: tuple(gains) for name, gains in self._log_gains.items()}

    def elsewhere(self, tree: Tree, node: int, count: int) -> tuple[Attempt, ...]:
        """The edits with the greatest gains but for those that led to a node or begin there, at the most `count`."""
        own = set(tree.lineage(node))
        ranked = sorted(self._greatest, key=lambda each: (-each[0], each[1]))
        others = (made for _, made in ranked if made not in own and tree.nodes[made].parent != node)
        found = (attempt_of(tree, tree.nodes[made]) for made in others)
        return tuple(attempt for attempt, _ in zip(filter(None, found), range(count), strict=False))

    def _take_in(self, tree: Tree, node: Node) -> None:
        attempt = attempt_of(tree, node)
        if attempt is None or node.evidence is None or node.score is None:
            return
        is_believed = not node.evidence.quarantine
        if is_believed:
            self.best_speedup = max(self.best_speedup, node.score.speedup)
        is_gain = attempt.gain > 1 and is_believed
        log_gain = math.log(attempt.gain) if is_gain else 0.0
        self._log_gains.setdefault(attempt.proposer, []).append(log_gain)
        if log_gain > 0:
            heapq.heappush(self._greatest, (log_gain, node.id))
            if len(self._greatest) > KEPT:
                heapq.heappop(self._greatest)
