"""A microbenchmark: a kernel that loads one unit of a GPU, and how its times become a constant.

Every kernel does the same thing again and again, `length` times. Its time is a straight line over the length: where
the line begins is what launching and warming up cost, and its slope is what one repetition takes. Only the slope is
used, so nothing has to be subtracted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

KERNEL = "probe"
"""What the `__global__` function of every microbenchmark is called."""


@dataclass(frozen=True)
class Board:
    """What the driver says about the GPU: who it is, and the numbers that launches depend on. Sizes in bytes.

    `constants` are those of an architecture's that need no measuring, as `limits.registers`.
    """

    name: str
    architecture: str
    sms: int
    l2_bytes: int
    max_shared_bytes: int
    constants: Mapping[str, int] = field(default_factory=dict)


class Grows(enum.Enum):
    """What the length of a run is: the kernel's argument `rounds`, its blocks, or how often it is launched.

    With NOTHING, the time of a single launch is what counts, beginning and all.
    """

    NOTHING = "nothing"
    ROUNDS = "rounds"
    BLOCKS = "blocks"
    LAUNCHES = "launches"


class Unit(enum.Enum):
    """What a constant is counted in."""

    PER_CYCLE_AND_SM = "a cycle and SM"
    PER_SECOND = "a second"
    CYCLES = "cycles"
    SECONDS = "seconds"


@dataclass(frozen=True)
class Zeros:
    """A buffer of zeros."""

    nbytes: int


@dataclass(frozen=True)
class Ring:
    """A buffer of 64-bit addresses, `stride` bytes apart, each of another one in it: all of them on one random ring.

    The first 8 bytes hold the address to go on from; the ring begins `stride` bytes behind them.
    """

    nbytes: int
    stride: int


@dataclass(frozen=True)
class Microbenchmark:
    """A kernel that loads one part of a GPU.

    `constant` is what it measures, as `throughput.fma`; other names are for constants that are derived.
    `amount` is what one unit of length does on the whole GPU: lanes, bytes, or dependent steps. `first` is a length
    to begin with, `most` the longest that the buffers are made for. `loop` says how often some machine instructions
    stand in the loop (in the whole kernel where it has none), which is what `amount` relies on.
    """

    constant: str
    why: str
    source: str
    blocks: int
    threads: int
    unit: Unit
    amount: float
    loop: Mapping[str, int]
    grows: Grows = Grows.ROUNDS
    first: int = 16
    most: int = 1 << 28
    shared_bytes: int = 0
    buffers: tuple[Zeros | Ring, ...] = field(default=(Zeros(4096),))
    code: str = ""
    """What to compile for where the GPU's own code won't do: `sm_90a`."""

    def value(self, slope: float, clock_hz: float, sms: int) -> float:
        """The constant, from seconds for each unit of length."""
        match self.unit:
            case Unit.PER_CYCLE_AND_SM:
                return self.amount / (slope * clock_hz * sms)
            case Unit.PER_SECOND:
                return self.amount / slope
            case Unit.CYCLES:
                return slope * clock_hz / self.amount
            case Unit.SECONDS:
                return slope / self.amount


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


class Machine(Protocol):
    """A GPU that runs microbenchmarks, or a simulated one in tests."""

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
    """A measurement that is not used; `reason` completes a sentence about it."""

    constant: str
    reason: str


def measure(benchmark: Microbenchmark, machine: Machine, clock_hz: float) -> Measured | Refused:
    """The constant that the median slope of a microbenchmark's times comes to, at three lengths in turn.

    By least squares, one slope for each repeat. Refused are times that don't grow with the length, don't lie on a line,
    or whose slopes differ by more than a tenth. Where nothing grows, the times of one length stand for the slopes.
    """
    constant = benchmark.constant
    if benchmark.grows is Grows.NOTHING:
        machine.seconds(benchmark, 1)
        slopes = np.array([machine.seconds(benchmark, 1) for _ in range(LEVEL_REPEATS)])
    else:
        unit = _fitting_length(benchmark, machine)
        lengths = [multiple * unit for multiple in MULTIPLES]
        seconds = np.array(
            [[machine.seconds(benchmark, length) for length in lengths] for _ in range(REPEATS)]
        )
        first, middle, last = (float(each) for each in np.median(seconds, axis=0))
        if last - first < LEAST_GROWTH * last:
            return Refused(constant, "its time doesn't grow with the work")
        # How far the time at the middle length lies from the line between the others, in slopes.
        bend = abs(middle - (first + last) / 2) / ((last - first) / 2)
        if bend > MOST_BEND:
            return Refused(constant, f"its time doesn't grow evenly (by {bend:.0%} more or less)")
        centred = np.array(lengths, float) - np.mean(lengths)
        slopes = seconds @ centred / (centred @ centred)
    low, slope, high = (float(each) for each in np.quantile(slopes, [0.25, 0.5, 0.75]))
    if slope <= 0:
        return Refused(constant, "its time doesn't grow with the work")
    spread = (high - low) / slope
    if spread > MOST_SPREAD:
        return Refused(constant, f"its repeats differ by {spread:.0%}")
    return Measured(constant, benchmark.value(slope, clock_hz, machine.board.sms), spread, benchmark.why)


def _fitting_length(benchmark: Microbenchmark, machine: Machine) -> int:
    """A length of which three times takes about the target, or as much as the buffers allow; warms up as it looks."""
    longest = MULTIPLES[-1]
    most = max(1, benchmark.most // longest)
    unit = min(benchmark.first, most)
    while (seconds := machine.seconds(benchmark, longest * unit)) < TARGET_SECONDS / 2 and unit < most:
        unit = min(most, max(unit + 1, int(unit * min(GROWTH, TARGET_SECONDS / max(seconds, 1e-9)))))
    machine.seconds(benchmark, longest * unit)
    return unit
