"""The progress of a search: the best speed-up so far against evaluations, seconds and dollars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mctskernel.core.budget import Spent
from mctskernel.core.evaluation import Outcome
from mctskernel.profiling.reward import is_eligible
from mctskernel.tree.events import Evaluated, Event, Proposed, Resumed


@dataclass(frozen=True, slots=True)
class Moment:
    """A search just after an evaluation.

    `evaluations` includes this one. `seconds` leave out pauses between the run's processes; `dollars` were paid for
    language models. `speedup` is that of the evaluated `node` over the root, 0 where it failed or is
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


def moments(events: Iterable[Event], spent: Spent | None = None) -> Iterator[Moment]:
    """The moments of a journal. `spent` was used by starting configurations that failed before its first event."""
    spent = spent or Spent()
    evaluations, seconds, dollars, best, best_speedup = spent.evaluations, spent.seconds, 0.0, None, 0.0
    last: float | None = None
    for event in events:
        # What passed before a process resumed the run is a pause.
        seconds += 0.0 if last is None or isinstance(event, Resumed) else event.at - last
        last = event.at
        if isinstance(event, Proposed):
            dollars += event.dollars
        if not isinstance(event, Evaluated):
            continue
        evaluations += 1
        speedup = event.score.speedup if is_eligible(event.evaluation) else 0.0
        if speedup > best_speedup:
            best, best_speedup = event.node, speedup
        outcome = event.evaluation.outcome
        yield Moment(evaluations, seconds, dollars, event.node, outcome, speedup, best, best_speedup)


def over_start(moment: Moment, speedup: float) -> Moment:
    """A moment with speed-ups over a start that has this one over the root."""
    return replace(moment, speedup=moment.speedup / speedup, best_speedup=moment.best_speedup / speedup)
