"""Which blocks of a plan's launches have a hand in what some blocks of the last one leave in an output.

A launch's blocks mostly touch the same pattern of memory, moved by as much for each step along the grid. So a few of
them are counted, and who else touches a place is computed and not looked for. Where blocks at random don't touch what
is computed for them, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator import Counts
from mctskernel.profiling.model.blocks import BlockCounter
from mctskernel.profiling.model.choice_of_blocks import middle_block

Sectors = np.ndarray

TRIED = 3
"""Blocks at random that a pattern must fit."""

MOST_COUNTED = 200
"""Blocks of a launch that are counted to see what they read, at the most."""

MOST_PLACES = 60_000
"""Different places of a launch's blocks that are looked at, at the most."""

_WRITES = frozenset({"store", "atomic", "reduction"})
_LOADS = frozenset({"load", "copy"})


class UntoldError(Exception):
    """Who touches what can't be told: blocks follow no pattern, or there are too many. The message says why."""


@dataclass(frozen=True)
class Needed:
    """Blocks of each launch, in order, and by output the sectors of 32 bytes that are final when these have run."""

    blocks: tuple[tuple[int, ...], ...]
    final: Mapping[str, Sectors]


def needed_blocks(
    counters: Sequence[BlockCounter],
    outputs: frozenset[str],
    inputs: frozenset[str],
    rng: np.random.Generator,
) -> Needed:
    """For what the middle block of the last launch that writes an output leaves, and one at random.

    Raises UntoldError.
    """
    launches = [_Pattern(counter, rng) for counter in counters]
    last = max((i for i, launch in enumerate(launches) if launch.writes.keys() & outputs), default=None)
    if last is None:
        raise UntoldError("no launch writes an output")
    chosen = {middle_block(launches[last].grid), int(rng.integers(launches[last].blocks))}
    wanted: dict[str, Sectors] = {}
    for block in chosen:
        _join(wanted, launches[last].touched(block, _WRITES, outputs))
    final = {name: wanted[name] for name in sorted(outputs & wanted.keys())}
    blocks: list[tuple[int, ...]] = [()] * len(launches)
    for index in range(last, -1, -1):
        launch = launches[index]
        several = any(
            launch.writes.keys() & other.writes.keys() & outputs for other in launches if other is not launch
        )
        if index < last or several or launch.updates & wanted.keys():
            found = launch.producers(wanted)
        else:
            found = sorted(chosen)
        if index == last:
            found = sorted({*found, *chosen})
        blocks[index] = tuple(found)
        between = launch.loads - inputs
        if between and len(found) > MOST_COUNTED:
            raise UntoldError("too many blocks hand results to each other")
        for block in found if between else ():
            _join(wanted, launch.touched(block, _LOADS, between))
        _join(wanted, launch.updated_by(found))
    return Needed(tuple(blocks), final)


class _Pattern:
    """What blocks of one launch touch, by buffer, in sectors from its beginning; from its middle block, and moved."""

    def __init__(self, counter: BlockCounter, rng: np.random.Generator) -> None:
        self.counter = counter
        self.grid, self.blocks = counter.launch.grid, counter.launch.blocks
        self.kinds = self._kinds()
        self.loads = frozenset(name for name, kind in self.kinds if kind in _LOADS)
        self.updates = frozenset(name for name, kind in self.kinds if kind in {"atomic", "reduction"})
        self.middle = middle_block(self.grid)
        names = frozenset(name for name, kind in self.kinds if kind in _WRITES)
        self.writes = {**self.touched(self.middle, _WRITES, names)}
        self.steps = {name: self._steps(name) for name in self.writes}
        for block in rng.integers(0, self.blocks, TRIED):
            self._confirm(int(block))

    def touched(self, block: int, kinds: frozenset[str], names: frozenset[str]) -> dict[str, Sectors]:
        """Sectors of these buffers that a block touches with accesses of these kinds."""
        return _touched(self._counts(block), self.counter, kinds, names)

    def producers(self, wanted: Mapping[str, Sectors]) -> list[int]:
        """Blocks that may write any of the sectors; some beside them, too."""
        found: set[int] = set()
        numbers = np.arange(self.blocks)
        for name in self.writes.keys() & wanted.keys():
            own, target = self.writes[name], wanted[name]
            table = np.zeros(max(int(target.max()), int(own.max())) + 3, bool)
            for near in (-1, 0, 1):
                table[np.maximum(target + near, 0)] = True
            moved = np.round(self._moved(name, numbers)).astype(np.int64)
            near = (own.min() + moved <= target.max() + 1) & (own.max() + moved >= target.min() - 1)
            distances = np.unique(moved[near])
            if len(distances) > MOST_PLACES:
                raise UntoldError("too many blocks may have a hand in a result")
            hits = [distance for distance in distances if _any_of(table, own + distance)]
            found.update(numbers[near & np.isin(moved, hits)].tolist())
        return sorted(found)

    def updated_by(self, blocks: Sequence[int]) -> dict[str, Sectors]:
        """Where these blocks find what they update atomically, and what is beside it."""
        found = {}
        for name in self.updates:
            own = np.unique(np.concatenate([self.writes[name] + near for near in (-1, 0, 1)]))
            moved = np.unique(np.round(self._moved(name, np.array(blocks, np.int64))).astype(np.int64))
            found[name] = np.unique((own[:, None] + moved).clip(min=0))
        return found

    def _counts(self, block: int) -> Counts:
        counts = self.counter.emulated(block)
        if isinstance(counts, str):
            raise UntoldError(counts)
        if any(trace.truncated for trace in counts.traces):
            raise UntoldError("a block touches too much")
        return counts

    def _kinds(self) -> set[tuple[str, str]]:
        """Buffers with the kinds of accesses to them, as the middle block and the ends make them."""
        found = set()
        for block in {0, middle_block(self.grid), self.blocks - 1}:
            counts = self._counts(block)
            for kind in _LOADS | _WRITES:
                names = frozenset(each.name for each in self.counter.ranges)
                found |= {(name, kind) for name in _touched(counts, self.counter, frozenset({kind}), names)}
        return found

    def _steps(self, name: str) -> tuple[float, float, float]:
        """By how many sectors what is written moves for a step along each dimension of the grid."""
        x, y, _ = self.grid
        steps = []
        for extent, stride in zip(self.grid, (1, x, x * y), strict=True):
            at = extent // 2
            if not at:
                steps.append(0.0)
                continue
            other = self.touched(self.middle - at * stride, _WRITES, frozenset({name})).get(name)
            if other is None:
                raise UntoldError("blocks differ in what they write")
            steps.append((int(self.writes[name].min()) - int(other.min())) / at)
        return steps[0], steps[1], steps[2]

    def _moved(self, name: str, blocks: Sectors) -> Sectors:
        """How much further what these blocks write begins than what the middle one does."""
        x, y, _ = self.grid
        places = (blocks % x, blocks // x % y, blocks // (x * y))
        middle = (self.middle % x, self.middle // x % y, self.middle // (x * y))
        parts = (step * (at - own) for step, at, own in zip(self.steps[name], places, middle, strict=True))
        return np.asarray(sum(parts, start=np.zeros(len(blocks))))

    def _confirm(self, block: int) -> None:
        for name, own in self.writes.items():
            found = self.touched(block, _WRITES, frozenset({name})).get(name)
            if found is None:
                continue
            expected = own + round(float(self._moved(name, np.array([block]))[0]))
            beside = np.unique(np.concatenate([expected - 1, expected, expected + 1]))
            if not np.isin(found, beside).all():
                raise UntoldError("blocks don't write where a pattern has them")


def _any_of(table: np.ndarray, places: Sectors) -> bool:
    return bool(table[places[(places >= 0) & (places < len(table))]].any())


def _touched(
    counts: Counts, counter: BlockCounter, kinds: frozenset[str], names: frozenset[str]
) -> dict[str, Sectors]:
    chosen = np.array([access.kind in kinds for access in counts.accesses], bool)
    sectors = np.unique(np.concatenate([trace.sectors[chosen[trace.accesses]] for trace in counts.traces]))
    found = {}
    for buffer in counter.ranges:
        if buffer.name in names:
            inside = sectors[(sectors >= buffer.first) & (sectors <= buffer.last)]
            if len(inside):
                found[buffer.name] = inside - buffer.first
    return found


def _join(wanted: dict[str, Sectors], more: Mapping[str, Sectors]) -> None:
    for name, sectors in more.items():
        wanted[name] = np.union1d(wanted[name], sectors) if name in wanted else sectors
