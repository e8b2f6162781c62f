"""What an access trace of a few blocks says about the caches of the whole chip.

L1 keeps what a block itself touches again, in its share of the SM's memory; stores pass through it. L2 holds
every buffer that is not larger than half of it; of larger ones, what the blocks running at the same time
share, and what a block touches again before all of them together have touched more than L2 keeps. What is
left goes to DRAM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.emulator import Counts, is_sampled

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SHARED_BY_L2 = 0.5
"""A buffer up to this fraction of L2 stays there while the kernel runs (assumed: two halves mirror each other)."""

KEPT_BY_L1 = 0.65
"""The footprint, loads and stores, that a block's share of L1 keeps, as a fraction of it.

Read off the L1 hit rates of softmax kernels on an H100 with 128 kB of rows in flight on each SM, which a pass
that only reads finds again and a pass that also writes does not.
"""

COMBINED_BY_L1 = 0.8
"""The share of a warp's stores to a sector right after its last one that leave L1 together with that.

Transposes on an H100 that store four neighbouring floats one after the other send 11 to 16 million sectors to L2,
where the requests touch 34 million and 8 million differ. Stores of different warps are not combined.
"""

COMBINED_WITHIN = 8  # accesses after which a store is no longer combined with another (assumed)

KEPT_BY_L2 = 0.44
"""The footprint, as a fraction of L2, after which half of what was touched is gone.

Read off the DRAM bytes of softmax kernels on an H100 that read rows of 16 kB twice, with 1056 to 8448 rows
in flight: 17 MB between the two passes lose a quarter, 35 MB four fifths.
"""

L2_SHARPNESS = 4.0
"""The power of the footprint with which L2 goes from keeping to losing, from the same kernels."""

FOLLOWED = 1 << 18  # accesses of a trace above which only a sample of the sectors is followed


@dataclass(frozen=True)
class Range:
    """A buffer's place: `first` and `last` sector number, inclusive."""

    name: str
    first: int
    last: int

    @property
    def sectors(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Sample:
    """One block that was counted and how many blocks of the grid it stands for."""

    counts: Counts
    weight: float


@dataclass(frozen=True)
class L1Traffic:
    """What passes L1 in one launch, in sectors; by line of the loads, the share of hits and sectors per request."""

    read_sectors: float
    write_sectors: float
    hit_rate: Mapping[int | None, float]
    sectors_per_request: Mapping[int | None, float]


@dataclass(frozen=True)
class DramTraffic:
    """Bytes that pass L2, and those of them that no cache could avoid; of the latter, the sectors that are loaded.

    `shared` is the fraction of what the blocks at work touch that others of them touch, too.
    """

    read_bytes: float
    write_bytes: float
    unique_bytes: float
    loaded_sectors: float
    shared: float


def l1_capacity(gpu: Architecture, resident_blocks: int, shared_bytes: int) -> float:
    """Sectors of L1 that each resident block has: what shared memory leaves, divided by the blocks."""
    reserved = resident_blocks * (shared_bytes + gpu.limits.reserved_shared_bytes)
    free = max(gpu.limits.l1_bytes - reserved, 0)
    return free / gpu.memory.sector_bytes / max(resident_blocks, 1)


_NOTHING = np.empty(0, dtype=np.int64)


def l1_traffic(samples: Sequence[Sample], capacity: float) -> L1Traffic:
    """Loads that miss and what is left of stores, of the whole grid; each block has `capacity` sectors for itself."""
    reads = writes = 0.0
    found: dict[int | None, float] = {}
    total: dict[int | None, float] = {}
    requests: dict[int | None, float] = {}
    for sample in samples:
        accesses = sample.counts.accesses
        is_load = np.array([access.kind in {"load", "copy"} for access in accesses], dtype=bool)
        for trace in sample.counts.traces:
            if not len(trace.sectors):
                continue
            touched = sum(access.sectors for access in accesses if access.space == "global")
            rate = sampling_rate(sample.counts)
            kept = is_sampled(trace.sectors, rate)
            sectors, of_access = trace.sectors[kept], trace.accesses[kept]
            scale = sample.weight * touched / max(len(sectors), 1)
            loads = is_load[of_access]
            served = hits(sectors, KEPT_BY_L1 * capacity / rate)[loads]
            reads += scale * np.count_nonzero(~served)
            stores = np.count_nonzero(~loads)
            writes += scale * (stores - COMBINED_BY_L1 * _stored_again(sectors, of_access, ~loads))
            which = of_access[loads]
            counted = np.bincount(which, minlength=len(accesses))
            hit = np.bincount(which, weights=served, minlength=len(accesses))
            for access, of, good in zip(accesses, counted, hit, strict=True):
                if of:
                    total[access.line] = total.get(access.line, 0.0) + scale * of
                    found[access.line] = found.get(access.line, 0.0) + scale * good
                    requests[access.line] = requests.get(access.line, 0.0) + sample.weight * access.requests
    rates = {line: float(found[line] / total[line]) for line in total}
    widths = {line: float(total[line] / requests[line]) for line in total}
    return L1Traffic(float(reads), float(writes), rates, widths)


@dataclass(frozen=True)
class Residency:
    """How blocks follow each other: the grid, and how many blocks the whole chip runs at once."""

    grid: tuple[int, int, int]
    at_once: int

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def waves(self) -> float:
        """How often the chip is filled."""
        return max(1.0, self.blocks / max(self.at_once, 1))


def dram_traffic(
    samples: Sequence[Sample],
    buffers: Sequence[Range],
    residency: Residency,
    gpu: Architecture,
    *,
    neighbour: Callable[[int], Counts | None],
    l1_sectors: float,
) -> DramTraffic:
    """Bytes to and from DRAM; `neighbour(distance)` counts another block, `l1_sectors` is a block's share of L1."""
    unique = loaded = own = together = all_together = row = 0.0
    rate = max(sampling_rate(sample.counts) for sample in samples)
    sector = gpu.memory.sector_bytes
    found: list[tuple[bool, float, float]] = []
    for buffer in buffers:
        for kinds, is_read in ((("load", "copy", "atomic", "reduction"), True), (_WRITES, False)):
            touched = [_touched(s.counts, buffer, kinds) for s in samples]
            followed = [_sampled(sectors, rate) for sectors in touched]
            gross = sum(s.weight * rate * len(of) for s, of in zip(samples, followed, strict=True))
            if not gross:
                continue
            different = min(gross, float(buffer.sectors))
            by_waves = different
            middles = followed[len(samples) // 2]
            mine = float(rate) * len(middles)
            in_wave = mine * min(residency.at_once, residency.blocks)
            in_row = mine * residency.grid[0]
            if gross > 1.05 * different:
                of_neighbour = partial(_of_neighbour, neighbour, buffer, kinds, rate)
                in_wave, in_row = (
                    min(float(buffer.sectors), rate * _distinct_at_once(middles, at_once, of_neighbour))
                    for at_once in (residency, replace(residency, at_once=residency.grid[0]))
                )
                if buffer.sectors * sector > SHARED_BY_L2 * gpu.memory.l2_bytes:
                    by_waves = max(different, min(gross, residency.waves * in_wave))
            own, together, row = own + mine, together + in_wave, row + in_row
            all_together += mine * min(residency.at_once, residency.blocks)
            unique += different
            loaded += different * is_read
            found.append((is_read, different, by_waves))
    # What a wave of blocks shares with the one before, it finds again unless L2 lost it since the row of blocks above.
    lost = lost_by_l2(sector * row, gpu)
    read = written = 0.0
    for is_read, different, by_waves in found:
        fetched = different + lost * (by_waves - different)
        read += fetched * is_read
        written += fetched * (not is_read)
    if own:
        kept = KEPT_BY_L2 * gpu.memory.l2_bytes / sector / (together / own)
        read += sum(s.weight * _lost_rereads(s.counts, l1_sectors, kept) for s in samples)
    shared = 1.0 - together / all_together if all_together else 0.0
    return DramTraffic(read * sector, written * sector, unique * sector, loaded, shared)


def lost_by_l2(footprint: float, gpu: Architecture) -> float:
    """The fraction that L2 has lost of what was touched so many bytes ago."""
    kept = KEPT_BY_L2 * gpu.memory.l2_bytes
    return 1.0 / (1.0 + (kept / footprint) ** L2_SHARPNESS) if footprint else 0.0


def _stored_again(sectors: Ints, of_access: Ints, stores: Bools) -> int:
    """Stores to a sector that one of the last few accesses, not the same one, has stored to."""
    execution = np.cumsum(np.r_[False, of_access[1:] != of_access[:-1]])[stores]
    reuse = reuse_times(sectors[stores])
    since = execution - execution[np.arange(len(reuse)) - reuse]
    return int(np.count_nonzero((since > 0) & (since <= COMBINED_WITHIN)))


def _lost_rereads(counts: Counts, l1_sectors: float, kept: float) -> float:
    """Sectors that a block touches again after L2 lost them; L2 keeps half of `kept` of its sectors."""
    is_load = np.array([access.kind in {"load", "copy"} for access in counts.accesses], dtype=bool)
    lost = 0.0
    rate = sampling_rate(counts)
    for trace in counts.traces:
        chosen = is_sampled(trace.sectors, rate)
        sectors, loads = trace.sectors[chosen], is_load[trace.accesses[chosen]]
        past_l1 = ~(loads & hits(sectors, KEPT_BY_L1 * l1_sectors / rate))
        sectors, loads = sectors[past_l1], loads[past_l1]
        reuse = reuse_times(sectors)
        again = (reuse > 0) & loads
        if again.any():
            between = float(rate) * footprints(reuse)[reuse[again]]
            touched = sum(access.sectors for access in counts.accesses if access.space == "global")
            scale = touched / max(int(np.count_nonzero(chosen)), 1)
            lost += scale * float(np.sum(1.0 / (1.0 + (kept / between) ** L2_SHARPNESS)))
    return lost


_WRITES = ("store", "atomic", "reduction")


def sampling_rate(counts: Counts) -> int:
    """One in how many sectors to follow, so that about `FOLLOWED` accesses are left of the longest trace."""
    longest = max((len(trace.sectors) for trace in counts.traces), default=0)
    kept = max((trace.rate for trace in counts.traces), default=1)
    return kept << max(0, (longest - 1) // FOLLOWED).bit_length()


def _sampled(sectors: Ints, rate: int) -> Ints:
    return sectors if rate == 1 else sectors[is_sampled(sectors, rate)]


def _touched(counts: Counts, buffer: Range, kinds: Sequence[str]) -> Ints:
    """The different sectors of a buffer, in order, that counted blocks touch with accesses of these kinds."""
    chosen = np.array([access.kind in kinds for access in counts.accesses], dtype=bool)
    if not chosen.any():
        return _NOTHING
    parts = [_NOTHING]
    for trace in counts.traces:
        inside = (trace.sectors >= buffer.first) & (trace.sectors <= buffer.last)
        inside &= chosen[trace.accesses]
        parts.append(trace.sectors[inside])
    return distinct(np.concatenate(parts))


def _of_neighbour(
    neighbour: Callable[[int], Counts | None], buffer: Range, kinds: Sequence[str], rate: int, distance: int
) -> Ints:
    """The same of the block so far after the middle one, one sector in `rate`; none where there is no such block."""
    other = neighbour(distance)
    return _NOTHING if other is None else _sampled(_touched(other, buffer, kinds), rate)


def _distinct_at_once(own: Ints, residency: Residency, of_neighbour: Callable[[int], Ints]) -> float:
    """Sectors of a buffer that the blocks running together touch, from how much neighbours share.

    n blocks in a row, each sharing a fraction s of its own with the next, touch 1 + (n - 1)(1 - s) times what
    one of them does.
    """
    width = residency.grid[0]
    in_row = min(width, residency.at_once)
    rows = max(1.0, residency.at_once / width)
    factor = 1.0
    for count, distance in ((in_row, 1), (rows, width)):
        if count > 1:
            both = np.intersect1d(own, of_neighbour(distance), assume_unique=True)
            factor *= 1.0 + (count - 1.0) * (1.0 - len(both) / max(len(own), 1))
    return len(own) * factor


# An LRU cache serves an access if fewer different sectors than it holds were touched since the last access to the same
# sector. Counting them exactly is slow; the mean footprint of windows of every length takes linear time.
# Xiang, Ding, Luo and Bao, "HOTL: a Higher Order Theory of Locality", ASPLOS 2013.


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
    """Mean number of different sectors in each window of 0 to all accesses, by the accesses' `reuse` times."""
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
