"""From times to a constant: the slope of time over length, and whether it can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark

REPEATS = 9
LEVEL_REPEATS = 31
MULTIPLES = (1, 2, 3)
"""Lengths, in units that make the longest run take about TARGET_SECONDS."""

TARGET_SECONDS = 4e-3
"""A thousand times what an event can tell apart, and short enough for nine of each length."""

GROWTH = 8
MOST_SPREAD = 0.10
MOST_BEND = 0.10
LEAST_GROWTH = 0.05
"""Of the longest time: in three times the length a line grows by two thirds of it, less what it begins with."""

Floats = npt.NDArray[np.float64]


class Machine(Protocol):
    """What runs microbenchmarks: a GPU, or in a test what knows the answers."""

    @property
    def board(self) -> Board:
        """What the driver says about the GPU."""

    def seconds(self, benchmark: Microbenchmark, length: int) -> float:
        """The GPU's time for one run of this length. Raises CudaError when the GPU refuses."""

    def release(self) -> None:
        """Give back what the last microbenchmark needed."""


@dataclass(frozen=True)
class Timings:
    """What a microbenchmark took: in each row, one repeat, the seconds for each of `lengths`."""

    lengths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Measured:
    """A constant as measured; `spread` is the interquartile range of its repeats, as a fraction of it."""

    constant: str
    value: float
    spread: float
    why: str


@dataclass(frozen=True)
class Refused:
    """A measurement that isn't believed; `reason` completes a sentence about it."""

    constant: str
    reason: str


def time_benchmark(benchmark: Microbenchmark, machine: Machine) -> Timings:
    """Run a microbenchmark at three lengths, several times in turn, after warming up."""
    if benchmark.grows is Grows.NOTHING:
        machine.seconds(benchmark, 1)
        return Timings((1,), tuple((machine.seconds(benchmark, 1),) for _ in range(LEVEL_REPEATS)))
    unit = _fitting_length(benchmark, machine)
    lengths = tuple(multiple * unit for multiple in MULTIPLES)
    rows = (tuple(machine.seconds(benchmark, length) for length in lengths) for _ in range(REPEATS))
    return Timings(lengths, tuple(rows))


def fit(benchmark: Microbenchmark, timings: Timings, clock_hz: float, sms: int) -> Measured | Refused:
    """The constant that the timings' median slope comes to: by least squares, one slope for each repeat.

    Refused are times that don't grow with the length, don't lie on a line, or whose slopes differ by more than a
    tenth. Where there is one length only, its times stand for the slopes.
    """
    lengths, seconds = np.array(timings.lengths, float), np.array(timings.seconds)
    if len(lengths) == 1:
        slopes = seconds[:, 0]
    else:
        shortest, longest = (float(each) for each in np.median(seconds, axis=0)[[0, -1]])
        if longest - shortest < LEAST_GROWTH * longest:
            return Refused(benchmark.constant, "its time doesn't grow with the work")
        bend = _bend(np.median(seconds, axis=0))
        if bend > MOST_BEND:
            return Refused(benchmark.constant, f"its time doesn't grow evenly (by {bend:.0%} more or less)")
        centred = lengths - lengths.mean()
        slopes = seconds @ centred / (centred @ centred)
    low, slope, high = (float(each) for each in np.quantile(slopes, [0.25, 0.5, 0.75]))
    if slope <= 0:
        return Refused(benchmark.constant, "its time doesn't grow with the work")
    spread = (high - low) / slope
    if spread > MOST_SPREAD:
        return Refused(benchmark.constant, f"its repeats differ by {spread:.0%}")
    return Measured(benchmark.constant, benchmark.value(slope, clock_hz, sms), spread, benchmark.why)


def _fitting_length(benchmark: Microbenchmark, machine: Machine) -> int:
    """A length of which three times takes about the target, or as much as the buffers allow; warms up as it looks."""
    longest = MULTIPLES[-1]
    most = max(1, benchmark.most // longest)
    unit = min(benchmark.first, most)
    while (seconds := machine.seconds(benchmark, longest * unit)) < TARGET_SECONDS / 2 and unit < most:
        unit = min(most, max(unit + 1, int(unit * min(GROWTH, TARGET_SECONDS / max(seconds, 1e-9)))))
    machine.seconds(benchmark, longest * unit)
    return unit


def _bend(times: Floats) -> float:
    """How far the time at the middle length lies from the line between the others, in slopes."""
    first, middle, last = (float(each) for each in times)
    rise = (last - first) / 2
    return abs(middle - (first + last) / 2) / abs(rise) if rise else 0.0
