"""Several things timed in turns, so that what drifts drifts for all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Run = Callable[[], float]
"""Runs something once and returns its seconds."""


@dataclass(frozen=True)
class Turns:
    """How long to go on: each contender runs `warm_up` times for nothing, then until it has spent `seconds`.

    It has `fewest` samples all the same, and at the most `most`.
    """

    seconds: float = 0.1
    warm_up: int = 3
    fewest: int = 5
    most: int = 100


def in_turns(runs: Mapping[str, Run], turns: Turns = Turns(), seed: int = 0) -> dict[str, tuple[float, ...]]:
    """The samples of each contender, in seconds. Every round runs those that go on, once each, in a drawn order."""
    for run in runs.values():
        for _ in range(turns.warm_up):
            run()
    rng = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in runs}

    def goes_on(name: str) -> bool:
        taken = samples[name]
        return len(taken) < turns.fewest or (len(taken) < turns.most and sum(taken) < turns.seconds)

    while left := [name for name in runs if goes_on(name)]:
        for place in rng.permutation(len(left)):
            samples[left[place]].append(runs[left[place]]())
    return {name: tuple(taken) for name, taken in samples.items()}
