"""What barriers of some of a block's warps order, as vector clocks of warps.

Each warp counts the barriers that it has passed. Its clock holds, for every warp of its block, the count up to which
it knows what that warp did: at a barrier the members' clocks are joined. (C. J. Fidge, "Timestamps in message-passing
systems that preserve the partial ordering", 1988.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mctskernel.profiling.emulator.lanes import WARP, Batch, Lanes

_next_era = partial(next, itertools.count())


@dataclass(frozen=True)
class Arrival:
    """Warps that arrived at a barrier without waiting, with their clocks then.

    `era` is of the clocks by block: those of an earlier one, before a barrier of the whole block, mean nothing now.
    """

    warps: np.ndarray
    known: np.ndarray
    era: np.ndarray


class WarpClocks:
    """The clocks of a batch's warps since the last barrier of their whole block."""

    def __init__(self, batch: Batch) -> None:
        self._warps = batch.warps_per_block
        total = batch.count * self._warps
        self.known = np.zeros((total, self._warps), np.int32)
        self._eras = np.zeros(batch.count, np.int64)
        self._eras[:] = _next_era()
        self._restart(np.arange(total))

    def arrive(self, members: Lanes) -> Arrival:
        """Some warps have arrived; what they do from now on is not what the others will have waited for."""
        warps = members.warps[members.warp_starts]
        blocks = warps // self._warps
        arrival = Arrival(warps, self.known[warps], self._eras[blocks])
        self.known = self.known.copy()
        self.known[warps, warps % self._warps] += 1
        return arrival

    def barrier(self, members: Lanes, arrivals: Sequence[Arrival] = ()) -> None:
        """Some warps of some blocks have met, and others had arrived before."""
        warps = members.warps[members.warp_starts]
        known = self.known.copy()
        for block in np.unique(warps // self._warps):
            met = warps[warps // self._warps == block]
            told = [
                each.known[(each.warps // self._warps == block) & (each.era == self._eras[block])]
                for each in arrivals
            ]
            known[met] = np.concatenate([known[met], *told]).max(axis=0)
            known[met, met % self._warps] += 1
        self.known = known

    def whole(self, blocks: np.ndarray) -> None:
        """All warps of these blocks of the batch have met, which ends what is remembered of them."""
        self._eras[blocks] = _next_era()
        self.known = self.known.copy()
        self._restart((blocks[:, None] * self._warps + np.arange(self._warps)).reshape(-1))

    def _restart(self, warps: np.ndarray) -> None:
        self.known[warps] = 0
        self.known[warps, warps % self._warps] = 1

    def unordered(
        self, early: np.ndarray, slots: np.ndarray, late: np.ndarray, others: np.ndarray
    ) -> np.ndarray:
        """Whether nothing orders what `slots` did when the clocks were `early` before what `others` did when they were
        `late`, warp by warp of one block each."""
        a, b = slots // WARP, others // WARP
        column = a % self._warps
        found: np.ndarray = (a != b) & (late[b, column] < early[a, column])
        return found
