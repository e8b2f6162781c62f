"""Strategies: how a tree grows, each behind the same interface, so that they can be compared at the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.strategies.annealing import Annealing
from mctskernel.tree.strategies.beam import BeamSearch
from mctskernel.tree.strategies.best_of_n import BestOfN
from mctskernel.tree.strategies.edit_model import ModelGuided
from mctskernel.tree.strategies.epsilon_net import EpsilonNet
from mctskernel.tree.strategies.genetic import Genetic
from mctskernel.tree.strategies.greedy import Greedy
from mctskernel.tree.strategies.mcts import TreeWalk
from mctskernel.tree.strategies.random_search import RandomSearch
from mctskernel.tree.strategies.strategy import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "mcts": TreeWalk,
    "edit-model": ModelGuided,
    "random": RandomSearch,
    "best-of-n": BestOfN,
    "greedy": Greedy,
    "beam": BeamSearch,
    "annealing": Annealing,
    "genetic": Genetic,
    "epsilon-net": EpsilonNet,
}
"""By name, what makes a strategy for one tree. Its numbers are the tree's policy's."""
