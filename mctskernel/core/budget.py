"""What a search may spend."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from mctskernel.core.option import Count, Option, Positive

PATIENCE = 50
"""Evaluations without a gain after which a search by rules stops (docs/tree_search.md has the experiment)."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a search stops, whichever comes first; None is no limit."""

    evaluations: Annotated[
        Count | None,
        Option("Maximum number of evaluations, including those of earlier sessions of the run.", "--budget"),
    ] = None
    seconds: Annotated[Positive | None, Option("Time limit in seconds.")] = None
    dollars: Annotated[
        Positive | None,
        Option("Spending limit for language models in US dollars.", "--max-usd", metavar="USD"),
    ] = None
    patience: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Option(
            "Stop after N evaluations in a row without an improvement; 0 never stops.",
            default=f"{PATIENCE} where rules alone propose edits of kernels, otherwise 0",
            metavar="N",
        ),
    ] = None

    def left(self, evaluations: int, seconds: float, dollars: float) -> Budget:
        """Return what is left of it when so much is spent; never less than nothing."""
        return Budget(
            None if self.evaluations is None else max(0, self.evaluations - evaluations),
            None if self.seconds is None else max(0.0, self.seconds - seconds),
            None if self.dollars is None else max(0.0, self.dollars - dollars),
        )

    def spent_fraction(self, evaluations: int, seconds: float, dollars: float) -> float:
        """Return how much of it is spent when so much is, from 0 to 1, by whichever limit is nearest."""
        pairs = ((evaluations, self.evaluations), (seconds, self.seconds), (dollars, self.dollars))
        return min(1.0, max((spent / limit for spent, limit in pairs if limit), default=0.0))
