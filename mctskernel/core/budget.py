"""What a search may spend."""

from __future__ import annotations

import msgspec

PATIENCE = 50
"""Evaluations without a gain after which a search by rules stops (docs/tree_search.md has the experiment)."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a search stops, whichever comes first; None is no limit.

    `patience` is how many evaluations in a row may bring no gain; 0 is no limit either.
    """

    evaluations: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    patience: int | None = None

    def left(self, evaluations: int, seconds: float, dollars: float) -> Budget:
        """What is left of it when so much is spent; never less than nothing."""
        return Budget(
            None if self.evaluations is None else max(0, self.evaluations - evaluations),
            None if self.seconds is None else max(0.0, self.seconds - seconds),
            None if self.dollars is None else max(0.0, self.dollars - dollars),
        )

    def spent_fraction(self, evaluations: int, seconds: float, dollars: float) -> float:
        """How much of it is spent when so much is, from 0 to 1, by whichever limit is nearest."""
        pairs = ((evaluations, self.evaluations), (seconds, self.seconds), (dollars, self.dollars))
        return min(1.0, max((spent / limit for spent, limit in pairs if limit), default=0.0))


class Spent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What went to starting configurations that failed, before the one that the search began at."""

    evaluations: int = 0
    seconds: float = 0.0
