"""The model of a tree's edits: which kernels it learns from, when it is fitted again, and what it expects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from mctskernel.tree.edit_model.fitting import fit, prior_hyperparameters
from mctskernel.tree.edit_model.frontier import Row, Vocabulary, table
from mctskernel.tree.edit_model.gaussian_process import Array, Posterior, distances
from mctskernel.tree.edit_model.score import Prospects
from mctskernel.tree.node import Tree

FEWEST = 12  # evaluations from which on hyperparameters are fitted: to fewer they fit too well
FITTED = 128  # evaluations that they are fitted to, at the most

CHOSEN, OBSERVED = 192, 256
"""Kernels that are learnt from, at the most: when the model is made, and with those that came since."""

FEWEST_PLACES = 8  # for factors; twice as many whenever that isn't enough
LEAST_SPREAD = 1e-3  # of logarithms, below which kernels count as equally fast


class EditModel:
    """What is expected of `candidates`, from `rows` of all nodes when the model is made; one at least of each."""

    def __init__(
        self, tree: Tree, vocabulary: Vocabulary, rows: Sequence[Row], candidates: Sequence[Row]
    ) -> None:
        self._vocabulary = vocabulary
        self._fitted_for = _conditions(tree, vocabulary)
        self._places = places = _places(vocabulary)
        known = tree.evaluated[: epoch(len(tree.evaluated))]
        fitted = _best_and_spread(tree, known, FITTED)
        described = table([rows[node] for node in fitted], places)
        between = distances(vocabulary, places)
        hyper = (
            fit(between, described, _Standardised(_log_speedups(tree, fitted)).values)
            if len(fitted) >= FEWEST
            else prior_hyperparameters(between, described)
        )
        self._observed = _training_nodes(tree, known)
        observed = table([rows[node] for node in self._observed], places)
        self._posterior = Posterior(between, hyper, observed, table(candidates, places))
        self._levels = vocabulary.levels_known
        self._nodes, self._candidates = len(tree.nodes), len(candidates)
        self._waiting, self._learnt = list(self._observed), (0, 0)

    def is_current(self, tree: Tree) -> bool:
        """False once it should be made anew: much more is known, or there are new factors."""
        return self._fitted_for == _conditions(tree, self._vocabulary)

    def update(self, rows: Sequence[Row], candidates: Sequence[Row]) -> None:
        """Take in nodes, whose times may still be unknown, and candidates that were appended since."""
        added = candidates[self._candidates :]
        observed = range(self._nodes, min(len(rows), self._nodes + OBSERVED - len(self._observed)))
        self._nodes, self._candidates = len(rows), len(candidates)
        if self._levels != self._vocabulary.levels_known:
            self._levels = self._vocabulary.levels_known
            self._posterior.extend(distances(self._vocabulary, self._places))
        for node in observed:
            self._posterior.observe(table([rows[node]], self._places)[0])
            self._observed.append(node)
            self._waiting.append(node)
        if added:
            self._posterior.add(table(added, self._places))

    @property
    def observations(self) -> int:
        return len(self._observed)

    def keep(self, candidates: Sequence[int]) -> None:
        """Forget all but these candidates."""
        self._posterior.keep(candidates)
        self._candidates, self._means = len(candidates), np.zeros(0)

    def prospects(self, tree: Tree) -> Prospects:
        self._waiting = [node for node in self._waiting if tree.nodes[node].score is None]
        learnt = len(self._observed), len(self._waiting)
        if learnt != self._learnt:
            speedups = _Standardised(_log_speedups(tree, self._observed))
            self._learnt, self._spread, self._means = learnt, speedups.spread, np.zeros(0)
            self._values = self._posterior.believed(speedups.values)
        # While nothing else is learnt, only new candidates are computed.
        means = self._posterior.means(self._values, len(self._means))
        self._means = np.concatenate([self._means, means])
        return Prospects(
            means=self._means,
            deviations=self._posterior.deviations,
            best=float(self._values.max()),
            spread=self._spread,
        )


def epoch(evaluations: int) -> int:
    """How many evaluations the model is made of: anew after a fifth more, at most 256, at least a sixteenth."""
    last, following = 0, 1
    while following <= evaluations:
        last, following = following, following + max(1, min(following // 5, 256), following // 16)
    return last


def _conditions(tree: Tree, vocabulary: Vocabulary) -> tuple[int, int, int]:
    return epoch(len(tree.evaluated)), _places(vocabulary), vocabulary.ordered_levels


def _places(vocabulary: Vocabulary) -> int:
    return max(FEWEST_PLACES, 1 << (len(vocabulary) - 1).bit_length())


def _log_speedups(tree: Tree, nodes: Iterable[int]) -> Array:
    """Minus infinity for a kernel that failed or was quarantined; NaN for a pending one."""
    scores = [tree.nodes[node].score for node in nodes]
    with np.errstate(divide="ignore"):
        return np.log([math.nan if score is None else score.speedup for score in scores])


class _Standardised:
    """Values with mean 0 and variance 1; NaN for those that aren't known yet.

    That of a kernel that failed, minus infinity, counts as the median: its factors promise nothing, and yet what lies
    beyond a limit of the GPU says little about the kernels before it, which are often the best.
    """

    def __init__(self, values: Array) -> None:
        known = values[np.isfinite(values)]
        middle = np.median(known) if len(known) else 0.0
        values = np.where(np.isneginf(values), middle, values)
        there = values[~np.isnan(values)]
        self.mean, self.spread = float(there.mean()), max(float(there.std()), LEAST_SPREAD)
        self.values: Array = (values - self.mean) / self.spread


def _training_nodes(tree: Tree, known: Sequence[int]) -> list[int]:
    """All nodes while they are few; otherwise some that are known, in order of creation."""
    if len(tree.nodes) <= OBSERVED:
        return list(range(len(tree.nodes)))
    return sorted(_best_and_spread(tree, known, CHOSEN))


def _best_and_spread(tree: Tree, known: Sequence[int], most: int) -> list[int]:
    """Half of them the fastest, half spread evenly over the search."""
    if len(known) <= most:
        return list(known)
    rewards = np.array([tree.nodes[number].reward for number in known])
    best = np.argsort(-rewards, kind="stable")[: most // 2]
    rest = np.setdiff1d(np.arange(len(known)), best)
    spread = rest[np.linspace(0, len(rest) - 1, most - len(best)).astype(int)]
    return [known[place] for place in sorted({*best.tolist(), *spread.tolist()})]
