"""What allocation knows of a search: its improvements, read from its tree in the order in which they came."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mctskernel.answer import believed_speedup, is_improvement
from mctskernel.campaign.allocation import Improvement
from mctskernel.tree.node import Tree


@dataclass
class History:
    """A search up to some evaluation, the starting kernel's included; `best` is the node that was fastest by then."""

    evaluations: int = 0
    best: int = 0
    improvements: list[Improvement] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Of the best so far over the starting kernel."""
        return math.exp(self.improvements[-1].log_speedup) if self.improvements else 1.0

    def advance(self, tree: Tree) -> None:
        """Take in the next evaluation of a tree that has one more."""
        node = tree.nodes[tree.evaluated[self.evaluations]]
        if node.id and is_improvement(node, tree.nodes[self.best]):
            self.best = node.id
            self.improvements.append(Improvement(self.evaluations, math.log(believed_speedup(node))))
        self.evaluations += 1
