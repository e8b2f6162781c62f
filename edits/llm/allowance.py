"""The money that calls may still cost, shared by threads."""

from __future__ import annotations

import threading


class Allowance:
    """US dollars that are left, less what calls in flight could come to. None is no limit."""

    def __init__(self, dollars: float | None) -> None:
        self._left = dollars
        self._held = 0.0
        self._lock = threading.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._left is not None

    @property
    def free(self) -> float | None:
        """What another call may cost; None without a limit."""
        with self._lock:
            return None if self._left is None else max(self._left - self._held, 0.0)

    def hold(self, dollars: float) -> bool:
        """Keep what a call may cost at the most for it; False, and nothing is kept, if that is more than is free."""
        with self._lock:
            if self._left is not None and dollars > self._left - self._held:
                return False
            self._held += dollars
            return True

    def settle(self, held: float, paid: float) -> None:
        """Take what a call cost in place of what was kept for it."""
        with self._lock:
            self._held -= held
            if self._left is not None:
                self._left -= paid
