"""What interpreted code talks to: memory as the emulator counts it, constants, undecided branches, and paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.counting import CountingMemory
from mctskernel.profiling.emulator.lanes import Batch, Lanes
from mctskernel.profiling.machine_code.decisions import Odds

PATH_BLOCKS = 200_000
"""Basic blocks of one warp's path that are kept."""

_GOLDEN = 0.6180339887498949


class UnresolvedCallError(Exception):
    """The interpreter came to a call that it can't follow; holds the instruction's index."""


@dataclass(frozen=True)
class Path:
    """The basic blocks that one warp went through, as indices of `Function.blocks`.

    `warps` is the number of warps of its thread block that it stands for; `truncated` when it went on.
    """

    block: int
    warp: int
    warps: int
    blocks: tuple[int, ...]
    truncated: bool


@dataclass
class InterpretedMemory(CountingMemory):
    """The memory port of the interpreter.

    `banks` are the constants of the launch; `starts` gives the basic block that begins with each piece of code,
    if one does; `odds` answer the questions of the code in order.
    """

    banks: Mapping[int, bytes] = field(kw_only=True)
    starts: Sequence[int | None] = field(kw_only=True)
    odds: Sequence[Odds] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: dict[tuple[int, int, str], np.generic] = {}
        self._asked: dict[int, np.ndarray] = {}
        self._followed: list[tuple[int, int, int, list[int]]] = []

    def start(self, batch: Batch) -> None:
        """Begin with one thread block, of whose warps the first, a middle one and the last are followed."""
        super().start(batch)
        warps = batch.warps_per_block
        chosen = sorted({0, warps // 2, warps - 1})
        shares = [1] * len(chosen)
        shares[len(chosen) // 2] += warps - len(chosen)
        self._chosen = np.array(chosen)
        self._asked = {}
        self._current: list[list[int]] = [[] for _ in chosen]
        for warp, share, blocks in zip(chosen, shares, self._current, strict=True):
            self._followed.append((int(batch.blocks[0]), warp, share, blocks))

    def executed(self, block: Block, lanes: Lanes) -> None:
        """Note the piece of code that is about to run."""
        super().executed(block, lanes)
        starts = self.starts[block.number]
        if starts is None:
            return
        for which in lanes.cached("followed", lambda: np.flatnonzero(np.isin(self._chosen, lanes.warps))):
            followed = self._current[which]
            if len(followed) <= PATH_BLOCKS:
                followed.append(starts)

    def paths(self) -> Iterator[Path]:
        """The paths of the followed warps."""
        for block, warp, share, blocks in self._followed:
            yield Path(block, warp, share, tuple(blocks[:PATH_BLOCKS]), len(blocks) > PATH_BLOCKS)

    def constant(self, bank: int, offset: int, dtype: str) -> np.generic:
        """A constant at a fixed place; zero beyond the bank's end."""
        key = (bank, offset, dtype)
        found = self._known.get(key)
        if found is None:
            size = np.dtype(dtype).itemsize
            data = self.banks.get(bank, b"")[offset : offset + size].ljust(size, b"\0")
            found = self._known[key] = np.frombuffer(data, dtype)[0]
        return found

    def constants(self, bank: int, offsets: Any, dtype: str) -> Any:
        """Constants at computed places; the last one beyond the bank's end."""
        data = self.banks.get(bank, b"")
        size = np.dtype(dtype).itemsize
        table = np.frombuffer(data[: len(data) // size * size].ljust(size, b"\0"), dtype)
        return table[np.minimum(offsets // size, len(table) - 1)]

    def unresolved(self, index: int) -> np.bool_:
        """A call whose target isn't known was reached."""
        raise UnresolvedCallError(index)

    def decide(self, lanes: Lanes, number: int) -> Any:
        """Which lanes take an undecided branch: whole warps in turn, so that the shares come out right.

        Where more warps go both ways than can go one, the odd lanes of a warp go the other way.
        """
        odds = self.odds[number]
        if odds.taken <= 0.0:
            return np.False_
        if odds.taken >= 1.0 and odds.other <= 0.0:
            return np.True_
        asked = self._asked.setdefault(number, np.zeros(self.batch.warps_per_block))
        warps = lanes.warps[lanes.warp_starts]
        phase = asked[warps] + warps * _GOLDEN
        asked[warps] += 1.0
        lanes_of = np.diff(np.r_[lanes.warp_starts, lanes.n])
        taken = _in_turn(phase, odds.taken)
        chosen: np.ndarray = np.repeat(taken, lanes_of)
        if odds.taken + odds.other > 1.0:
            both = np.repeat(taken & _in_turn(phase, (odds.taken + odds.other - 1.0) / odds.taken), lanes_of)
            chosen &= ~(both & (lanes.slots % 2 == 1))
        return chosen


def _in_turn(phase: np.ndarray, share: float) -> np.ndarray:
    """True for a share of the numbers of a sequence, evenly spread; what is rarer comes last, as loops end."""
    if share > 0.5:
        return ~_in_turn(phase, 1.0 - share)
    found: np.ndarray = np.floor((phase + 1.0) * share) > np.floor(phase * share)
    return found
