"""From times to a constant: the slope of time over length, and whether it can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark

REPEATS = 9
LEVEL_REPEATS = 31
LENGTHS = np.array([1.0, 2.0, 3.0])
"""In units that make the longest run take about TARGET_SECONDS."""

TARGET_SECONDS = 4e-3
"""A thousand times what an event can tell apart, and short enough for nine of each length."""

GROWTH = 8
MOST_SPREAD = 0.10

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


def measure(benchmark: Microbenchmark, machine: Machine, clock_hz: float) -> Measured | Refused:
    """Run a microbenchmark at three lengths, several times in turn, and turn the median slope into its constant.

    Refused are times that don't grow with the length, don't lie on a line, or whose slopes differ by more than a
    tenth of it.
    """
    if benchmark.grows is Grows.NOTHING:
        machine.seconds(benchmark, 1)
        levels = np.array([machine.seconds(benchmark, 1) for _ in range(LEVEL_REPEATS)])
        return _believed(benchmark, levels, machine.board, clock_hz)
    unit = _fitting_length(benchmark, machine)
    times = np.array([[machine.seconds(benchmark, int(k) * unit) for k in LENGTHS] for _ in range(REPEATS)])
    bend = _bend(np.median(times, axis=0))
    if bend > MOST_SPREAD:
        return Refused(benchmark.constant, f"its time doesn't grow evenly (by {bend:.0%} more or less)")
    centred = LENGTHS - LENGTHS.mean()
    slopes = times @ centred / (centred @ centred) / unit
    return _believed(benchmark, slopes, machine.board, clock_hz)


def _believed(benchmark: Microbenchmark, slopes: Floats, board: Board, clock_hz: float) -> Measured | Refused:
    low, slope, high = (float(each) for each in np.quantile(slopes, [0.25, 0.5, 0.75]))
    if slope <= 0:
        return Refused(benchmark.constant, "its time doesn't grow with the work")
    spread = (high - low) / slope
    if spread > MOST_SPREAD:
        return Refused(benchmark.constant, f"its repeats differ by {spread:.0%}")
    return Measured(benchmark.constant, benchmark.value(slope, clock_hz, board.sms), spread, benchmark.why)


def _fitting_length(benchmark: Microbenchmark, machine: Machine) -> int:
    """A length of which three times takes about the target, or as much as the buffers allow; warms up as it looks."""
    most = max(1, benchmark.most // 3)
    unit = min(benchmark.first, most)
    while (seconds := machine.seconds(benchmark, 3 * unit)) < TARGET_SECONDS / 2 and unit < most:
        unit = min(most, max(unit + 1, int(unit * min(GROWTH, TARGET_SECONDS / max(seconds, 1e-9)))))
    machine.seconds(benchmark, 3 * unit)
    return unit


def _bend(times: Floats) -> float:
    """How far the time at the middle length lies from the line between the others, in slopes."""
    first, middle, last = (float(each) for each in times)
    rise = (last - first) / 2
    return abs(middle - (first + last) / 2) / abs(rise) if rise else 0.0
