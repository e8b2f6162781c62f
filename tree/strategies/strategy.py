"""A strategy: which edit of which node comes next, read off the tree alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mctskernel.tree.node import Tree

Generators = Callable[[], np.random.Generator]
"""Makes the random generator of the moment: the same one for the same seed and the same number of events."""


@dataclass(frozen=True)
class Step:
    """Edit number `edit` of the last node of `path` is to be tried."""

    path: tuple[int, ...]
    edit: int

    @property
    def node(self) -> int:
        """The node whose kernel is edited."""
        return self.path[-1]


@dataclass(frozen=True)
class Propose:
    """The last node of `path` is to be given edits, by a proposer.

    The reply is told to `TreeSearch.proposed`; if the search goes on meanwhile, `asked` is told first.
    """

    path: tuple[int, ...]

    @property
    def node(self) -> int:
        """The node that needs edits."""
        return self.path[-1]


class Strategy(Protocol):
    """Grows one tree. What it remembers between calls saves time and nothing else.

    Another one that meets the same tree later, because the search was resumed for instance, makes the same steps.
    """

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:
        """What comes next, the first step first; it alone will be done before this is asked again.

        At the most `count`, each made as if those before it were in flight, for whoever prices them beforehand; a
        strategy may always answer with one. A node is given edits only where `node.ready`, and nothing comes after
        that. Empty when nothing can be done before something in flight comes back, or ever. The tree isn't changed.
        """
        ...
