"""`bar.red`: how many threads of a block brought a true condition to a barrier.

Control flow turns it into a contribution before a plain barrier and a result after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.lanes import Batch, Lanes


@dataclass
class _Barrier:
    """By slot, how often it contributed; by block, the newest round and the tallies of that and the one before.

    Two rounds are enough: nobody contributes to the one after next before all have read this one.
    """

    round: np.ndarray
    newest: np.ndarray
    raised: np.ndarray
    arrived: np.ndarray


class BarrierReductions:
    """The tallies of one batch by barrier number."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._barriers: dict[int, _Barrier] = {}

    def contribute(self, g: Lanes, number: int, condition: V) -> None:
        """Count the lanes and their conditions for the barrier that they are about to reach."""
        if number not in self._barriers:
            blocks = self.batch.count
            rounds = np.zeros(self.batch.slots, np.int64)
            tallies = [np.zeros((blocks, 2), np.int64) for _ in range(2)]
            self._barriers[number] = _Barrier(rounds, np.zeros(blocks, np.int64), *tallies)
        barrier, block = self._barriers[number], g.block_index
        barrier.round[g.slots] += 1
        now = barrier.round[g.slots]
        first = now > barrier.newest[block]
        opened = block[first]
        barrier.newest[opened] = now[first]
        barrier.raised[opened, now[first] % 2] = 0
        barrier.arrived[opened, now[first] % 2] = 0
        np.add.at(barrier.raised, (block, now % 2), condition)
        np.add.at(barrier.arrived, (block, now % 2), 1)

    def result(self, g: Lanes, number: int, operation: str) -> np.ndarray:
        """What the barrier that the lanes have passed found: popc, and, or."""
        barrier = self._barriers[number]
        at = (g.block_index, barrier.round[g.slots] % 2)
        raised: np.ndarray = barrier.raised[at]
        if operation == "popc":
            return raised.astype(np.uint32)
        return np.asarray(raised == barrier.arrived[at] if operation == "and" else raised > 0)
