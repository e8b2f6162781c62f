"""The money that requests may still cost, shared by those of one event loop."""

from __future__ import annotations

import asyncio
import math


class Allowance:
    """US dollars that are left, some of them held for requests in flight. None is no limit."""

    def __init__(self, dollars: float | None) -> None:
        self._left = dollars
        self._held: list[float] = []
        self._settled = asyncio.Event()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._left is not None

    @property
    def left(self) -> float:
        """What hasn't been paid, held or not."""
        return math.inf if self._left is None else self._left

    async def hold(self, dollars: float) -> bool:
        """Keep what a request may cost at the most for it; False, and nothing is kept, if that is more than is left.

        Where it is more only because of requests in flight, this waits until they cost less than they might have.
        """
        while dollars > self.left - math.fsum(self._held):
            if dollars > self.left or not self._held:
                return False
            await self._settled.wait()
        self._held.append(dollars)
        return True

    def settle(self, held: float, paid: float) -> None:
        """Take what a request cost in place of what was held for it."""
        self._held.remove(held)
        if self._left is not None:
            self._left -= paid
        self._settled.set()
        self._settled = asyncio.Event()
