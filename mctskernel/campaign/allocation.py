"""Which of several searches gets the next evaluation: the one from which the whole model is expected to gain most.

By Amdahl's law a model's time is a sum over its kernels, so a kernel that takes `seconds` of it now, and gets faster by
the factor exp(g), saves seconds * (1 - exp(-g)). Of one more evaluation

    saving = seconds * rate * (1 - exp(-size * headroom))

is expected, and the next one begins where that is the largest for what an evaluation costs:

seconds     of the model's time that the kernel takes now, with what was gained by now
headroom    log(time now / floor), from the roofline: nothing is expected beyond it, and nothing at it
rate        the chance that an evaluation improves on the best so far: improvements are a Poisson process over
            evaluations whose rate has a Gamma prior, so its posterior mean is (SHAPE + improvements) / (RATE +
            evaluations) (Gelman et al., "Bayesian Data Analysis", 3rd edition, section 2.6). Searches slow down, so
            with each improvement those before it, and their evaluations, count for FADING of what they did (Smith, "A
            generalization of the Bayesian steady forecasting model", 1979). Evaluations since the last improvement
            count whole: what stagnates promises ever less, and whatever promises something comes to its turn. Those
            in flight count as if they had improved nothing.
size        the share of the headroom that an improvement takes: the mean of those seen, faded alike, and of a prior

What is maximised is the saving of one step and not of all that are left, which is the knowledge gradient of Frazier,
Powell and Dayanik ("A knowledge-gradient policy for sequential information collection", 2008). Ansor (Zheng et al.,
OSDI 2020, section 6) shares a budget among a network's kernels by the same kind of slope, taken from the last
evaluations of each; docs/results/campaign_allocation.md compares the two, with others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHAPE = 2.0
RATE = 3.0
"""Of the Gamma prior: before anything is known two in three evaluations are expected to improve."""

SIZE = 0.5
SIZE_WEIGHT = 0.5
"""The share of the headroom that an improvement is expected to take, and how many seen ones that counts for."""

FADING = 0.5
"""What everything before an improvement counts for once it came."""

UNKNOWN_HEADROOM = math.log(4.0)
"""Where no floor is known, another factor of four is always taken for possible."""


@dataclass(frozen=True)
class Improvement:
    """A new best: the number of the evaluation, 1 for the first after the starting kernel's, and its log speed-up."""

    evaluation: int
    log_speedup: float


@dataclass(frozen=True)
class Standing:
    """How a search stands.

    `seconds` are what the starting kernel takes of the model's time, `evaluations` those that came back after the
    starting kernel's. `headroom` is the logarithm of the starting kernel's time over the floor, None for no floor.
    `cost` is that of an evaluation, in the same unit for all searches.
    """

    name: str
    seconds: float
    evaluations: int = 0
    improvements: Sequence[Improvement] = ()
    headroom: float | None = None
    in_flight: int = 0
    cost: float = 1.0

    @property
    def log_speedup(self) -> float:
        """Of the best so far."""
        return self.improvements[-1].log_speedup if self.improvements else 0.0

    @property
    def seconds_now(self) -> float:
        """What the best so far takes of the model's time."""
        return self.seconds * math.exp(-self.log_speedup)


def ranked(standings: Iterable[Standing]) -> tuple[str, ...]:
    """The names of the searches, the one that the next evaluation should go to first; equals in the order of names."""
    found = sorted(standings, key=lambda each: (-expected_saving(each) / each.cost, each.name))
    return tuple(each.name for each in found)


def expected_saving(standing: Standing) -> float:
    """Seconds of the model's time that one more evaluation of a search is expected to save."""
    headroom = headroom_after(standing.headroom, standing.log_speedup)
    rate, size = _rate_and_size(standing)
    return standing.seconds_now * rate * -math.expm1(-size * headroom)


def headroom_after(headroom: float | None, log_speedup: float) -> float:
    """What is left of a headroom after a speed-up. A floor that was passed is none."""
    left = UNKNOWN_HEADROOM if headroom is None else headroom - log_speedup
    return left if left >= 0 else UNKNOWN_HEADROOM


def _rate_and_size(standing: Standing) -> tuple[float, float]:
    seen = waited = sizes = 0.0
    number, reached = 0, 0.0
    for each in standing.improvements:
        left = headroom_after(standing.headroom, reached)
        taken = min(1.0, (each.log_speedup - reached) / left) if left > 0 else 1.0
        seen = FADING * seen + 1.0
        waited = FADING * waited + each.evaluation - number
        sizes = FADING * sizes + taken
        number, reached = each.evaluation, each.log_speedup
    waited += standing.evaluations - number + standing.in_flight
    return (SHAPE + seen) / (RATE + waited), (SIZE_WEIGHT * SIZE + sizes) / (SIZE_WEIGHT + seen)
