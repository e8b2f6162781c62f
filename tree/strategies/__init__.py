"""Strategies: how a tree grows, each behind the same interface, so that they can be compared at the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.strategies.mcts import TreeWalk
from mctskernel.tree.strategies.strategy import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {"mcts": TreeWalk}
"""By name, what makes a strategy for one tree. Its numbers are the tree's policy's."""
