"""What barriers of some of a block's warps order, as vector clocks of warps.

Each warp counts the barriers that it has passed. Its clock holds, for every warp of its block, the count up to which
it knows what that warp did: at a barrier the members' clocks are joined. (C. J. Fidge, "Timestamps in message-passing
systems that preserve the partial ordering", 1988.)
"""

from __future__ import annotations

import numpy as np

from mctskernel.profiling.emulator.lanes import WARP, Batch, Lanes


class WarpClocks:
    """The clocks of a batch's warps since the last barrier of their whole block."""

    def __init__(self, batch: Batch) -> None:
        self._warps = batch.warps_per_block
        total = batch.count * self._warps
        self.known = np.zeros((total, self._warps), np.int32)
        self._restart(np.arange(total))

    def barrier(self, members: Lanes) -> None:
        """Some warps of some blocks have met."""
        warps = members.warps[members.warp_starts]
        known = self.known.copy()
        for block in np.unique(warps // self._warps):
            met = warps[warps // self._warps == block]
            known[met] = known[met].max(axis=0)
            known[met, met % self._warps] += 1
        self.known = known

    def whole(self, blocks: np.ndarray) -> None:
        """All warps of these blocks of the batch have met, which ends what is remembered of them."""
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
