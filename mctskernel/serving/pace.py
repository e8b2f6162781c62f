"""How often somebody may come: a token bucket for each name."""

from __future__ import annotations

from collections import OrderedDict

MAX_NAMES = 4096
"""Whoever wasn't seen for longest is forgotten beyond this."""


class Pace:
    """`rate` times a second in the long run, and `burst` times at once, for each name by itself."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def delay(self, name: str, now: float) -> float:
        """0 when the name may come now, which counts; otherwise the seconds after which it may."""
        left, since = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        allowed = left >= 1
        self._left[name] = (left - 1 if allowed else left, now)
        if len(self._left) > MAX_NAMES:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate
