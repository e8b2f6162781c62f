"""Replaying: what is in flight comes back in the order in which it came in a recorded search.

With several evaluations and replies in flight, what a search does next depends on which is first. A repetition that
gets the same results in the same order makes the same decisions.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mctskernel.async_proposer import AsyncProposer
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.tree.events import Evaluated, Event, Proposed, Requested, Resumed
from mctskernel.tree.node import Tree

PAUSE_SECONDS = 0.01
"""How long to wait for replies before looking at evaluations again."""


class Arrival(enum.Enum):
    """What can come back."""

    EVALUATION = enum.auto()
    REPLY = enum.auto()


@dataclass(frozen=True)
class _Step:
    """Something that came back about a node, as a search's event of this number."""

    arrival: Arrival
    node: int
    event: int


def difference(recorded: Tree, repeated: Tree) -> str:
    """In a sentence, how the nodes of a repeated search differ from those of the recorded one; empty if they don't."""
    for node, (then, now) in enumerate(zip(recorded.nodes, repeated.nodes, strict=False)):
        if (then.parent, then.kernel.identity) != (now.parent, now.kernel.identity):
            return f"Node {node} is another one than it was: up to there the two searches agree."
    before, after = len(recorded.nodes), len(repeated.nodes)
    return (
        ""
        if before == after
        else f"Of {before} nodes the repeated search has {after}, and these are the same."
    )


class Schedule:
    """The order of a recorded search, kept for as long as the tree that grows does what the recorded one did.

    Nothing is held back once a stop is requested.
    """

    def __init__(
        self, recorded: Iterable[Event], tree: Tree, stop_requested: Callable[[], bool] = lambda: False
    ) -> None:
        self._steps = _steps(recorded)
        self._tree = tree
        self._stop_requested = stop_requested
        self._next = 0
        self._met: dict[Arrival, int] = {}
        self.diverged = False

    @property
    def is_followed(self) -> bool:
        """Whether results are held back: neither has the search diverged, nor is the recorded one at its end."""
        return not self.diverged and self._next < len(self._steps) and not self._stop_requested()

    def meet(self, arrival: Arrival) -> None:
        """Notes that the search has made its decisions and now waits for this.

        It has diverged if it went past the next step, or if it has less to decide than the recorded one had: then it
        comes twice to the same event.
        """
        if not self.is_followed:
            return
        now, step = self._tree.events, self._steps[self._next]
        stalls = now < step.event and self._met.get(arrival) == now
        self.diverged = stalls or now > step.event or (now == step.event and not self._is_in_flight(step))
        self._met[arrival] = now

    def turn(self, arrival: Arrival, ahead: int) -> int | None:
        """The node whose turn it is once `ahead` such results are recorded; None if a decision comes first.

        The search has diverged if that node's is to come and was never asked for.
        """
        place = self._next + ahead
        if place >= len(self._steps):
            return None
        step = self._steps[place]
        if step.arrival is not arrival or step.event != self._tree.events + ahead:
            return None
        self.diverged = not self._is_in_flight(step)
        return None if self.diverged else step.node

    def passed(self, count: int) -> None:
        """Notes that the next `count` steps are recorded."""
        self._next += count

    def _is_in_flight(self, step: _Step) -> bool:
        return step.node in (
            self._tree.pending if step.arrival is Arrival.EVALUATION else self._tree.requested
        )


Result = TypeVar("Result")


def _in_order(
    schedule: Schedule,
    arrival: Arrival,
    arrived: dict[int, Result],
    receive: Callable[[], Iterable[tuple[int, Result]]],
) -> list[tuple[int, Result]]:
    """The results whose turn it is, which are waited for: the recorded search made no decision before them."""
    schedule.meet(arrival)
    due: list[tuple[int, Result]] = []
    while schedule.is_followed and (node := schedule.turn(arrival, len(due))) is not None:
        if node in arrived:
            due.append((node, arrived.pop(node)))
        else:
            arrived.update(receive())
    schedule.passed(len(due))
    if not schedule.is_followed:
        arrived.update(receive())
        due += [(node, arrived.pop(node)) for node in list(arrived)]
    return due


class ScheduledExecutor:
    """An executor whose evaluations come back on schedule."""

    def __init__(self, executor: Executor, schedule: Schedule) -> None:
        self._executor, self._schedule = executor, schedule
        self._flying = 0
        self._arrived: dict[int, Evaluation] = {}

    @property
    def capacity(self) -> int:
        """That of the executor."""
        return self._executor.capacity

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation."""
        self._flying += 1
        self._executor.submit(ticket, kernel)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations whose turn it is, for however long they take; empty if another thing is next."""
        due = _in_order(self._schedule, Arrival.EVALUATION, self._arrived, lambda: self._receive(timeout))
        if not due:
            time.sleep(PAUSE_SECONDS)
        return due

    def _receive(self, timeout: float | None) -> list[tuple[int, Evaluation]]:
        finished = self._executor.wait(timeout)
        self._flying -= len(finished)
        return finished

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """The executor's."""
        return self._executor.final_validation(kernel, baseline)

    def fingerprint(self) -> dict[str, str]:
        """The executor's."""
        return self._executor.fingerprint()

    @property
    def notes(self) -> tuple[str, ...]:
        """The executor's."""
        return self._executor.notes

    def close(self) -> None:
        """Stop at once."""
        self._executor.close()


class ScheduledProposer:
    """An async proposer whose replies come on schedule."""

    def __init__(self, proposer: AsyncProposer, schedule: Schedule) -> None:
        self._proposer, self._schedule = proposer, schedule
        self._arrived: dict[int, Proposals] = {}

    @property
    def capacity(self) -> int:
        """That of the proposer."""
        return self._proposer.capacity

    @property
    def expects_replies(self) -> bool:
        """Whether one is held back or still to come."""
        return bool(self._arrived) or self._proposer.expects_replies

    def send(self, request: ProposalRequest) -> None:
        """Ask about the request's node."""
        self._proposer.send(request)

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:  # noqa: ARG002 - an AsyncProposer
        """The replies whose turn it is, for however long they take; empty if another thing is next."""
        return _in_order(
            self._schedule, Arrival.REPLY, self._arrived, lambda: self._proposer.collect(PAUSE_SECONDS)
        )


def _steps(recorded: Iterable[Event]) -> list[_Step]:
    """What came back, without replies that came at once, to no recorded request."""
    steps: list[_Step] = []
    asked: set[int] = set()
    for number, event in enumerate(recorded):
        match event:
            case Evaluated(node=node):
                steps.append(_Step(Arrival.EVALUATION, node, number))
            case Proposed(node=node) if node in asked:
                asked.discard(node)
                steps.append(_Step(Arrival.REPLY, node, number))
            case Requested(node=node):
                asked.add(node)
            case Resumed():
                asked.clear()
    return steps
