"""What one quantity says of another beyond what others say already, within groups and then over clusters of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array

FEWEST = 10
"""Observations of a group that say anything."""


@dataclass(frozen=True)
class Group:
    """Observations that can be compared with each other: of `proxy`, `outcome`, and the columns of `given`.

    Groups of the same `cluster` may depend on each other.
    """

    cluster: str
    proxy: Array
    outcome: Array
    given: Array


def partial_rank_correlation(group: Group) -> float | None:
    """Spearman's correlation of proxy and outcome when what `given` says of both is taken away, by ranks.

    None where there are too few observations, or nothing of the proxy or the outcome is left. Source: Kendall,
    "Partial rank correlation", 1942; ranks are regressed linearly.
    """
    if len(group.outcome) < max(FEWEST, group.given.shape[1] + 3):
        return None
    given = np.column_stack([np.ones(len(group.outcome)), *(ranks(column) for column in group.given.T)])
    first, second = (_residuals(ranks(each), given) for each in (group.proxy, group.outcome))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    # What is left of ranks that others explain is rounding.
    return float(first @ second) / scale if min(first @ first, second @ second) > 1e-9 else None


def by_cluster(groups: Sequence[Group]) -> dict[str, float]:
    """The mean partial rank correlation of each cluster's groups, weighted by their observations."""
    found: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        correlation = partial_rank_correlation(group)
        if correlation is not None:
            found.setdefault(group.cluster, []).append((correlation, len(group.outcome)))
    return {
        cluster: float(np.average([each for each, _ in pairs], weights=[count for _, count in pairs]))
        for cluster, pairs in found.items()
    }


def held_out_gains(groups: Sequence[Group]) -> Mapping[str, float]:
    """By cluster: the share of the squared error that knowing the proxy takes away where it was not fitted.

    Outcomes are predicted linearly from what is given, with and without the proxy, by what was fitted on all other
    clusters. All columns are taken from their group's mean, since only kernels of one search compete, and outcomes are
    divided by their cluster's standard deviation. Below 0 where knowing it does harm. Clusters whose proxy or outcome
    never varies have no share.
    """
    clusters = {
        group.cluster: _pooled([each for each in groups if each.cluster == group.cluster]) for group in groups
    }
    clusters = {name: each for name, each in clusters.items() if np.any(each.proxy) and np.any(each.outcome)}
    gains = {}
    for name, held_out in clusters.items():
        others = [each for other, each in clusters.items() if other != name]
        if not others:
            return {}
        outcome = np.concatenate([each.outcome for each in others])
        errors = []
        for columns in (_given, _given_and_proxy):
            fitted = np.linalg.lstsq(np.concatenate([columns(each) for each in others]), outcome, rcond=None)[
                0
            ]
            residuals = held_out.outcome - columns(held_out) @ fitted
            errors.append(float(residuals @ residuals))
        gains[name] = (errors[0] - errors[1]) / errors[0]
    return gains


def ranks(values: Array) -> Array:
    """Ranks from 1, ties sharing the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=float)


def _pooled(groups: Sequence[Group]) -> Group:
    """The groups of a cluster as one, each column taken from its group's mean."""
    outcome = np.concatenate([each.outcome - each.outcome.mean() for each in groups])
    spread = float(outcome.std())
    return Group(
        groups[0].cluster,
        np.concatenate([each.proxy - each.proxy.mean() for each in groups]),
        outcome / spread if spread else outcome,
        np.concatenate([each.given - each.given.mean(axis=0) for each in groups]),
    )


def _given(group: Group) -> Array:
    return group.given


def _given_and_proxy(group: Group) -> Array:
    return np.column_stack([group.given, group.proxy])


def _residuals(values: Array, given: Array) -> Array:
    return np.asarray(values - given @ np.linalg.lstsq(given, values, rcond=None)[0])
