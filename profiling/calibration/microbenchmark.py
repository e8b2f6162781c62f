"""What a microbenchmark is: a kernel that loads one part of a GPU, and how its time becomes a constant.

Every kernel does the same thing again and again, `length` times. Its time is a straight line over the length: where
the line begins is what launching and warming up cost, and its slope is what one repetition takes. Only the slope is
used, so nothing has to be subtracted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

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

    @property
    def l2_resident_bytes(self) -> int:
        """A power of two that L2 holds whatever part of it a read comes to: a quarter of it, 8 MB at the most."""
        return 1 << min(23, (self.l2_bytes // 4).bit_length() - 1)

    @property
    def beyond_l2_bytes(self) -> int:
        """A power of two that L2 holds no more than a quarter of."""
        return 1 << max(28, (4 * self.l2_bytes - 1).bit_length())


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

    `constant` is what it measures, as `throughput.fma`; with another name it is shown and nothing else.
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
