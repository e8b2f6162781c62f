"""What kinds of edit were worth trying: how many were, and how much they gained."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import msgspec

from mctskernel.core.evaluation import Outcome

NOISE = 0.02
"""The gain, as a fraction, below which an edit counts as having changed nothing."""


class Tried(Protocol):
    """A node as far as its edit's success needs it; `category` is empty for the starting kernel."""

    @property
    def category(self) -> str:
        """Of the edit that made it."""

    @property
    def proposer(self) -> str:
        """Whoever proposed the edit."""

    @property
    def outcome(self) -> str | None:
        """How its evaluation ended; None while it is in flight."""

    @property
    def quarantine(self) -> str:
        """Why its time isn't believed."""

    @property
    def gain(self) -> float | None:
        """The parent's time over its own; None where one of them has none."""


class EditSuccess(msgspec.Struct, frozen=True):
    """Edits of one category and proposer whose kernels were evaluated.

    `gained` of them made their parent faster, and `lost` slower, by more than the noise. Gains are the parent's time
    over the child's among those that are `valid`; None without any.
    """

    category: str
    proposer: str
    tried: int
    valid: int
    gained: int
    lost: int
    median_gain: float | None
    best_gain: float | None


def edit_success(nodes: Iterable[Tried]) -> tuple[EditSuccess, ...]:
    """A row for each category and proposer, the most often tried first."""
    kinds: defaultdict[tuple[str, str], list[Tried]] = defaultdict(list)
    for node in nodes:
        if node.category and node.outcome is not None:
            kinds[node.category, node.proposer].append(node)
    rows = (_success(category, proposer, tried) for (category, proposer), tried in kinds.items())
    return tuple(sorted(rows, key=lambda row: (-row.tried, row.category, row.proposer)))


def _success(category: str, proposer: str, tried: list[Tried]) -> EditSuccess:
    valid = [node for node in tried if node.outcome == Outcome.OK and not node.quarantine]
    gains = [node.gain for node in valid if node.gain is not None]
    return EditSuccess(
        category,
        proposer,
        len(tried),
        len(valid),
        sum(gain > 1 + NOISE for gain in gains),
        sum(gain < 1 - NOISE for gain in gains),
        statistics.median(gains) if gains else None,
        max(gains, default=None),
    )
