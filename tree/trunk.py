"""The trunk: leads of one chain of nodes from the root, as arrays, so that a walk checks all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mctskernel.tree.backup import SHORT
from mctskernel.tree.node import Tree
from mctskernel.tree.vector import Array

if TYPE_CHECKING:
    from mctskernel.tree.leads import Lead

NEVER = -1
"""Visits up to which a lead holds that is sure for the present walk alone."""


class Trunk:
    """The way that most walks take, where no child's worth ever falls.

    What it says of a step holds whatever becomes of the lead that it came of.

    Each column of `_steps` is a step: its edge, the visits of its node that aren't along that edge, those up to which
    it is sure, and how often the node's open ways had changed; `_nodes` has one more, where the last step leads.
    """

    def __init__(self) -> None:
        self._nodes = [0]
        self._places = np.zeros(2, np.int64)
        self._steps = np.zeros((4, 1), np.int64)
        self._length = 0
        # Of the present walk: where it has to look, from the end to the root, and whether it is on the trunk so far.
        self._breaks: list[int] = []
        self._is_followed = False

    def clear(self) -> None:
        """Forgets all steps, as the range of rewards has changed."""
        self._length = 0

    def begin(self, tree: Tree) -> None:
        """Begins a walk."""
        # Whatever is in flight anywhere is in flight below the root.
        self._is_followed = not tree.node_statistics.in_flight[0]
        if self._length <= SHORT:
            # One by one is quicker.
            self._breaks = [*range(self._length, -1, -1)]
        elif self._is_followed:
            self._breaks = [self._length, *np.flatnonzero(~self._sure(tree))[::-1].tolist()]

    def follow(self, path: list[int]) -> None:
        """Lengthens a path by the steps that are sure, if it has led along the trunk so far."""
        at = len(path) - 1
        if not self._is_followed or at > self._length or path[at] != self._nodes[at]:
            self._is_followed = False
            return
        while self._breaks[-1] < at:
            self._breaks.pop()
        path += self._nodes[at + 1 : self._breaks[-1] + 1]

    def note(self, tree: Tree, path: list[int], lead: Lead) -> None:
        """Takes in the lead by which a path goes on. What followed on another way is forgotten."""
        at = len(path) - 1
        if not self._is_followed:
            return
        if at == self._length or self._nodes[at + 1] != lead.child:
            self._nodes[at:] = path[at], lead.child
            self._length = at + 1
            self._breaks = [self._length]
        if self._length == self._steps.shape[1]:
            self._grow()
        self._places[at : at + 2] = path[at], lead.child
        changes = tree.node_statistics.changes[path[at]]
        self._steps[:, at] = lead.edge, lead.aside, lead.until, changes

    def _sure(self, tree: Tree) -> Array:
        """Of each step, whether its lead is sure to hold, so far as can be told without prolonging it."""
        length, statistics = self._length, tree.node_statistics
        nodes, (edges, aside, until, changes) = self._places[:length], self._steps[:, :length]
        seen = statistics.visits.view[nodes]
        sure: Array = seen <= until
        sure &= seen - tree.edge_statistics.visits.view[edges] == aside
        sure &= statistics.changes.view[nodes] == changes
        return sure

    def _grow(self) -> None:
        self._places = np.resize(self._places, 2 * self._steps.shape[1] + 1)
        self._steps = np.concatenate([self._steps, np.zeros_like(self._steps)], axis=1)
