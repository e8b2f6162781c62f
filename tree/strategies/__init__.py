"""Strategies: how a tree grows, each behind the same interface, so that they can be compared at the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.strategies.annealing import Annealing
from mctskernel.tree.strategies.baselines import BeamSearch, BestOfN, EpsilonNet, Greedy, RandomSearch
from mctskernel.tree.strategies.edit_model import ModelGuided
from mctskernel.tree.strategies.evolutionary import Evolutionary
from mctskernel.tree.strategies.mcts import MonteCarlo, PlainUct
from mctskernel.tree.strategies.strategy import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "edit-model": ModelGuided,
    "mcts": MonteCarlo,
    "uct": PlainUct,
    "greedy": Greedy,
    "best-of-n": BestOfN,
    "beam": BeamSearch,
    "annealing": Annealing,
    "evolutionary": Evolutionary,
    "epsilon-net": EpsilonNet,
    "random": RandomSearch,
}
"""By name, what makes a strategy for one tree. Its numbers are in the tree's policy."""
