"""Counters that all blocks of a grid draw from, while only one of the blocks runs.

A persistent block draws its next piece of work from a counter in global memory, and alone it would draw every piece.
So here each of the other blocks draws as often as the one that runs: what an atomic adds is added for all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from mctskernel.profiling.emulator.atomics import apply_atomic
from mctskernel.profiling.emulator.memory import Buffer, Storage

Place = tuple[str, int]
"""A buffer's name and an offset in it, in bytes."""

_MOST = 64
"""Places that one atomic instruction adds to beyond which it counts something else than pieces of work."""


@dataclass
class _Counter:
    target: np.ndarray
    index: int
    held: np.generic
    slots: set[int] = field(default_factory=set)


class Turns:
    """Atomic operations as if `blocks` blocks executed them in turn.

    With `counters` only these are drawn from in turn, and a block's first draw finds what the blocks before it have
    left. Without, it finds what the counter holds. `again` names the places that a thread has drawn from repeatedly.
    """

    def __init__(self, blocks: int, counters: Collection[Place] | None = None) -> None:
        self.again: set[Place] = set()
        self._blocks = blocks
        self._counters = counters
        self._drawn: dict[Place, _Counter] = {}
        self._block = 0

    def start(self, block: int) -> None:
        """Another block begins, and finds every counter as the one before it did."""
        self.restore()
        self._block = block

    def restore(self) -> None:
        """Counters hold again what they held."""
        for counter in self._drawn.values():
            counter.target[counter.index] = counter.held
        self._drawn.clear()

    def apply(  # noqa: PLR0917 - what an atomic operation is made of
        self,
        storage: Storage,
        target: np.ndarray,
        index: np.ndarray,
        operation: str,
        b: np.ndarray | None,
        c: np.ndarray | None,
        slots: np.ndarray,
    ) -> np.ndarray:
        """Update `target[index]` lane by lane, for the other blocks too; what each lane, of a slot, found there."""
        if b is None or not b.any() or not _is_counter(storage, target, operation):
            return apply_atomic(target, index, operation, b, c)
        places = np.unique(index).tolist()
        if len(places) > _MOST:
            return apply_atomic(target, index, operation, b, c)
        taken = {}
        for at in places:
            place, lanes = (storage.name, at * target.dtype.itemsize), index == at
            drawn = self._drawn.setdefault(place, _Counter(target, at, target[at]))
            if self._counters is None or place in self._counters:
                taken[at] = b[lanes]
                if self._counters is not None and not drawn.slots:
                    _advance(target, at, operation, b[lanes], self._block)
            slot = int(slots[np.argmax(lanes)])
            if slot in drawn.slots:
                self.again.add(place)
            drawn.slots.add(slot)
        old = apply_atomic(target, index, operation, b, c)
        for at, operands in taken.items():
            _advance(target, at, operation, operands, self._blocks - 1)
        return old


def _is_counter(storage: Storage, target: np.ndarray, operation: str) -> TypeGuard[Buffer]:
    return isinstance(storage, Buffer) and operation in ("add", "inc") and target.dtype.kind in "iu"


def _advance(target: np.ndarray, at: int, operation: str, b: np.ndarray, times: int) -> None:
    """Draw from a counter so many times as lanes with the operands `b` do."""
    if operation == "add":
        end = int(target[at]) + times * int(b.sum(dtype=np.int64))
    else:
        end = (int(target[at]) + times * len(b)) % (int(b[0]) + 1)
    target[at] = np.uint64(end & (2**64 - 1)).astype(target.dtype)
