"""How long to wait before a server is asked again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz


@dataclass(frozen=True)
class Backoff:
    """Exponential waits with jitter, from `first` to `longest` seconds.

    A server's own Retry-After is obeyed up to `patience` seconds, and more than that ends the call.
    """

    first: float = 0.5
    longest: float = 30.0
    patience: float = 120.0

    def seconds(self, retry: int, retry_after: float | None = None) -> float | None:
        """How long to wait before a retry, counted from 0; None if the server asks for more than is granted."""
        # A draw decides when a server is asked, and nothing that a search does.
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - not secret
        wait = min(self.first * 2.0 ** min(retry, 30), self.longest) * jitter
        if retry_after is None:
            return wait
        return None if retry_after > self.patience else max(retry_after, wait)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait, a number or a date (RFC 9110, section 10.2.3); None if it doesn't."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return None if math.isnan(seconds) else max(seconds, 0.0)
    try:
        date = parsedate_tz(headers.get("retry-after", ""))
        return None if date is None else max(mktime_tz(date) - time.time(), 0.0)
    except (ValueError, OverflowError, TypeError):
        return None
