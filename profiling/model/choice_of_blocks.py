"""Which blocks of a launch a price is made from: those that stand for all others, or some at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.profiling.emulator import Counts

UNEVEN_SAMPLE = 12
"""Blocks that are counted at the most where the contents of buffers decide what a block does."""

UNEVEN_LANES = 2_000_000
"""Lane instructions that those blocks may have together, beyond the first three."""

IDLE_MIDDLE = 4
"""How many times as much as the middle block one at an end must execute for blocks all over the grid to be counted:
such a middle stands for itself, as where the larger half of a grid has nothing to do. So does one that asks for no
memory where an end does."""

LARGE_SAMPLE = 8_000_000
"""Lane instructions of one block beyond which no second block is counted: what is so long is seldom uneven."""

DRAWN_SAMPLE = 12
DRAWN_LEAST = 3
DRAWN_LANES = 4_000_000
"""Blocks at random that are counted at the most, at the least, and after how many lane instructions no further one."""

Counted = TypeVar("Counted")


def middle_block(grid: tuple[int, int, int]) -> int:
    """The block that stands for most of a grid."""
    x, y, z = (extent // 2 for extent in grid)
    return x + grid[0] * (y + grid[1] * z)


class Counter(Protocol):
    """What is known of a launch whose blocks are counted; `drawn` are blocks at random to be counted, if any are."""

    @property
    def launch(self) -> ResolvedLaunch:
        """The launch."""

    @property
    def drawn(self) -> Sequence[int] | None:
        """Blocks at random."""

    @property
    def data_dependent(self) -> bool:
        """Whether the contents of buffers have decided anything so far."""


def sampled(
    counter: Counter,
    counted: Callable[[int], Counted | str],
    lanes: Callable[[Counted], int],
    counts: Callable[[Counted], Counts],
) -> list[tuple[int, Counted, float]] | str:
    """The middle block, and unless it is long the first and last, each with the blocks that it stands for.

    More of them where the data decides what a block does, or where the middle one has next to nothing to do.
    Where blocks at random are asked for, those.
    """
    if counter.drawn is not None:
        return _as_drawn(counter.launch.blocks, counter.drawn, counted, lanes)
    launch = counter.launch
    total = launch.blocks
    at = middle_block(launch.grid)
    middle = counted(at)
    if isinstance(middle, str):
        return middle
    if total <= 2 or lanes(middle) > LARGE_SAMPLE:
        return [(at, middle, float(total))]
    if counter.data_dependent and total > UNEVEN_SAMPLE:
        number = max(3, min(UNEVEN_SAMPLE, UNEVEN_LANES // max(1, lanes(middle))))
        return _evenly(total, number, counted)
    first, last = counted(0), counted(total - 1)
    if isinstance(first, str):
        return first
    if isinstance(last, str):
        return last
    asks_for_none = not _requests(counts(middle)) and any(_requests(counts(end)) for end in (first, last))
    is_idle = asks_for_none or max(lanes(first), lanes(last)) > IDLE_MIDDLE * lanes(middle)
    if total > UNEVEN_SAMPLE and is_idle:
        return _evenly(total, UNEVEN_SAMPLE, counted)
    edge = total - math.prod(extent - 1 for extent in launch.grid if extent > 1)
    side = min(float(edge), total / 3)
    return [(0, first, side), (at, middle, total - 2 * side), (total - 1, last, side)]


def _requests(counts: Counts) -> int:
    """What a block asks of global memory."""
    return sum(access.requests for access in counts.accesses if access.space == "global")


def _evenly(
    total: int, number: int, counted: Callable[[int], Counted | str]
) -> list[tuple[int, Counted, float]] | str:
    """So many blocks all over the grid, each for as many others."""
    found: list[tuple[int, Counted, float]] = []
    for each in range(number):
        block = (2 * each + 1) * total // (2 * number)
        one = counted(block)
        if isinstance(one, str):
            return one
        found.append((block, one, total / number))
    return found


def _as_drawn(
    total: int,
    blocks: Sequence[int],
    counted: Callable[[int], Counted | str],
    lanes: Callable[[Counted], int],
) -> list[tuple[int, Counted, float]] | str:
    """As many of the drawn blocks as there is time for, in the order of the grid, each for as many others."""
    found: list[tuple[int, Counted]] = []
    spent = 0
    for block in blocks:
        one = counted(block)
        if isinstance(one, str):
            return one
        found.append((block, one))
        spent += lanes(one)
        if spent > DRAWN_LANES and len(found) >= DRAWN_LEAST:
            break
    return [(block, one, total / len(found)) for block, one in sorted(found, key=lambda pair: pair[0])]


def one_of_each_part(total: int, parts: int, rng: np.random.Generator) -> list[int]:
    """A block of each of so many equal parts of a grid, all of a small one, in no order."""
    if total <= parts:
        return [int(block) for block in rng.permutation(total)]
    places = (rng.permutation(parts) + rng.random(parts)) * (total / parts)
    return [min(int(place), total - 1) for place in places]
