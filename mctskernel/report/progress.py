"""The progress of a search: the best speed-up so far against evaluations, seconds and dollars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mctskernel.core.budget import Spent
from mctskernel.core.evaluation import Outcome
from mctskernel.profiling.reward import is_eligible
from mctskernel.tree.events import Evaluated, Event, Proposed, Resumed

NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class Moment:
    """A search just after an evaluation.

    `evaluations` includes this one. `seconds` leave out pauses between the run's processes; `dollars` were paid for
    language models. `speedup` is that of the evaluated `node` over the starting kernel, 0 where it failed or is
    quarantined; `best_speedup` is the highest yet, that of `best`, which is None before any success.
    """

    evaluations: int
    seconds: float
    dollars: float
    node: int
    outcome: Outcome
    speedup: float
    best: int | None
    best_speedup: float


@dataclass
class Progress:
    """The state of a search after the events so far."""

    spent: Spent = NOTHING
    evaluations: int = field(init=False)
    dollars: float = 0.0
    best: int | None = None
    best_speedup: float = 0.0
    last: float = 0.0
    _before: float = field(init=False)
    _began: float | None = None

    def __post_init__(self) -> None:
        self.evaluations, self._before = self.spent.evaluations, self.spent.seconds

    @property
    def seconds(self) -> float:
        """Seconds that the run's processes spent, up to the last event."""
        return self._before + (self.last - self._began if self._began is not None else 0.0)

    def take(self, event: Event) -> Moment | None:
        """Update with an event; returns the moment after it if it is an evaluation."""
        if self._began is None or isinstance(event, Resumed):
            self._before, self._began = self.seconds, event.at
        self.last = event.at
        if isinstance(event, Proposed):
            self.dollars += event.dollars
        return self._evaluated(event) if isinstance(event, Evaluated) else None

    def _evaluated(self, event: Evaluated) -> Moment:
        self.evaluations += 1
        speedup = event.score.speedup if is_eligible(event.evaluation) else 0.0
        if speedup > self.best_speedup:
            self.best, self.best_speedup = event.node, speedup
        return Moment(
            self.evaluations,
            self.seconds,
            self.dollars,
            event.node,
            event.evaluation.outcome,
            speedup,
            self.best,
            self.best_speedup,
        )


def moments(events: Iterable[Event], spent: Spent = NOTHING) -> Iterator[Moment]:
    """The moments of a journal. `spent` was used by starting configurations that failed before its first event."""
    progress = Progress(spent)
    for event in events:
        if moment := progress.take(event):
            yield moment


def best_after(found: Iterable[Moment], evaluations: int) -> float:
    """The best speed-up after so many evaluations; 0 before any success."""
    return max((moment.best_speedup for moment in found if moment.evaluations <= evaluations), default=0.0)
