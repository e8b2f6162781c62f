"""The failures of a run by kind: how its kernels ended, what noticed, and examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import msgspec

from mctskernel.core.evaluation import Outcome

QUARANTINED = "quarantined"
EXAMPLES = 8
"""Nodes that are named of each kind."""


class Judged(Protocol):
    """A node as far as its failure needs it; `guard`, `message` and `quarantine` may be empty."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def outcome(self) -> str | None:
        """How its evaluation ended; None while it is in flight."""

    @property
    def guard(self) -> str:
        """What noticed."""

    @property
    def message(self) -> str:
        """Why it failed."""

    @property
    def quarantine(self) -> str:
        """Why its time isn't believed."""


class FailureKind(msgspec.Struct, frozen=True):
    """Failures with the same outcome that the same guard noticed: how many, the first ones, and the first message."""

    outcome: str
    guard: str
    count: int
    nodes: tuple[int, ...]
    message: str


def failure_kinds(nodes: Iterable[Judged]) -> tuple[FailureKind, ...]:
    """The kinds of failure, the most frequent first; a time that isn't believed is one."""
    kinds: defaultdict[tuple[str, str], list[Judged]] = defaultdict(list)
    for node in nodes:
        if node.outcome is None or (node.outcome == Outcome.OK and not node.quarantine):
            continue
        outcome = QUARANTINED if node.outcome == Outcome.OK else node.outcome
        kinds[outcome, node.guard].append(node)
    found = (
        FailureKind(
            outcome,
            guard,
            len(failed),
            tuple(node.id for node in failed[:EXAMPLES]),
            failed[0].message or failed[0].quarantine,
        )
        for (outcome, guard), failed in kinds.items()
    )
    return tuple(sorted(found, key=lambda kind: -kind.count))
