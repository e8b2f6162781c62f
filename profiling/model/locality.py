"""Which accesses a cache serves, from their order alone.

An LRU cache serves an access when fewer different sectors than it holds were touched since the last access
to the same one. Counting them exactly is slow; the average footprint of a window of that length is known for
all lengths at once in linear time: Xiang, Ding, Luo and Bao, "HOTL: a Higher Order Theory of Locality",
ASPLOS 2013.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def reuse_times(sectors: Ints) -> Ints:
    """For each access, how many accesses ago the same sector was touched last; 0 for the first time."""
    order = np.argsort(sectors, kind="stable")
    ordered = sectors[order]
    previous = np.full(len(sectors), -1, dtype=np.int64)
    same = ordered[1:] == ordered[:-1]
    previous[order[1:][same]] = order[:-1][same]
    return np.where(previous >= 0, np.arange(len(sectors)) - previous, 0)


def distinct(sectors: Ints) -> Ints:
    """The different sectors, in order: `np.unique` by merging, since accesses mostly come in runs."""
    ordered = np.sort(sectors, kind="stable")
    fresh = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return ordered[fresh]


def footprints(reuse: Ints) -> npt.NDArray[np.float64]:
    """The mean number of different sectors in a window of each length from 0 to the number of accesses.

    `reuse` are the accesses' `reuse_times`.
    """
    count = len(reuse)
    first = np.flatnonzero(reuse == 0)
    again = np.flatnonzero(reuse)
    is_last = np.ones(count, dtype=bool)
    is_last[again - reuse[again]] = False
    last_reversed = count - 1 - np.flatnonzero(is_last)
    # A window misses a sector when it fits into a gap: between two uses, before the first, after the last.
    gaps = np.bincount(reuse[again], minlength=count + 2)
    gaps += np.bincount(first + 1, minlength=count + 2)
    gaps += np.bincount(last_reversed + 1, minlength=count + 2)
    longer = np.concatenate([np.cumsum(gaps[::-1])[::-1][1:], [0]])
    windows = np.arange(count + 1)
    # sum over gaps longer than w of (gap - w), for every w
    excess = np.cumsum(longer[::-1])[::-1][: count + 1]
    return len(first) - excess / (count - windows + 1)


def hits(sectors: Ints, capacity: float) -> Bools:
    """Whether an LRU cache of `capacity` sectors, empty at first, serves each access."""
    if len(sectors) == 0:
        return np.zeros(0, dtype=bool)
    reuse = reuse_times(sectors)
    return (reuse > 0) & (footprints(reuse)[reuse] <= capacity)
