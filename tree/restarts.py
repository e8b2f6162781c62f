"""Restarts: where walks lead while the search stagnates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.node import Tree


@dataclass
class Stagnation:
    """Whether a search is stuck: the best kernel's node, and after how many evaluations of the tree it was found.

    A kernel that is ok is better if its reward is greater.
    """

    best: int = 0
    found_after: int = 0
    _read: int = 0
    _reward: float = float("-inf")

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        for number in tree.evaluated[self._read :]:
            self._read += 1
            node = tree.nodes[number]
            reward = tree.node_statistics.reward[number]
            if node.outcome is Outcome.OK and reward > self._reward:
                self.best, self.found_after, self._reward = number, self._read, reward

    def is_restarting(self, tree: Tree) -> bool:
        """Whether a restart is under way.

        One begins `stagnation` evaluations after the best kernel was found, ends when a better one is or after
        `restart_length`, and the next begins `stagnation` evaluations after that.
        """
        stagnation, length = tree.policy.stagnation, tree.policy.restart_length
        return (self._read - self.found_after) % (stagnation + length) >= stagnation


@dataclass(frozen=True)
class Detour:
    """How walks differ while a restart is under way: a subtree that they pass over, values that they ignore."""

    closed: int | None = None
    ignores_values: bool = False


NO_DETOUR = Detour()


def nowhere(tree: Tree, best: int) -> Detour:  # noqa: ARG001 - a Restart
    """Walks go on as ever."""
    return NO_DETOUR


def elsewhere(tree: Tree, best: int) -> Detour:
    """Walks pass over the child of the root that the best kernel's trajectory begins with."""
    lineage = tree.lineage(best)
    return Detour(closed=lineage[1]) if len(lineage) > 1 else NO_DETOUR


def blind(tree: Tree, best: int) -> Detour:  # noqa: ARG001 - a Restart
    """Walks go by priors and visits alone, so to where few have been."""
    return Detour(ignores_values=True)


Restart = Callable[[Tree, int], Detour]
"""Takes a tree and the node of its best kernel."""

RESTARTS: Mapping[str, Restart] = {"none": nowhere, "elsewhere": elsewhere, "blind": blind}
