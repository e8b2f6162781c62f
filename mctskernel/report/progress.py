"""The progress of a search: the best speed-up so far against evaluations, seconds and dollars."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mctskernel.answer import is_improvement, valid_speedup
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.events import Evaluated, Event, Proposed, Resumed


@dataclass(frozen=True, slots=True)
class Moment:
    """A search just after an evaluation.

    `evaluations` includes this one. `seconds` leave out pauses between the run's processes; `dollars` were paid for
    language models. `speedup` is that of the evaluated `node` over the root, 0 where it failed or is
    quarantined; `best_speedup` is that of `best`, the best node yet (`answer.best_node`), None before any success.
    """

    evaluations: int
    seconds: float
    dollars: float
    node: int
    outcome: Outcome
    speedup: float
    best: int | None
    best_speedup: float


def moments(events: Iterable[Event], refused: Collection[int] = ()) -> Iterator[Moment]:
    """Return a journal's moments; nodes that the final validation `refused` count, and are never the best."""
    evaluations, seconds, dollars = 0, 0.0, 0.0
    best: Evaluated | None = None
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
        speedup, outcome = valid_speedup(event), event.evaluation.outcome
        if speedup and event.node not in refused and (best is None or is_improvement(event, best)):
            best = event
        found = (best.node, valid_speedup(best)) if best else (None, 0.0)
        yield Moment(evaluations, seconds, dollars, event.node, outcome, speedup, *found)
