"""What a run tells in words: its best path, one line an edit with the count that moved most, and notes on the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from mctskernel.profiling.bottleneck import account
from mctskernel.profiling.changes import Comparison, CountChange
from mctskernel.profiling.quantities import count_text, time_text
from mctskernel.report.conversation import conversation_sentences
from mctskernel.report.judgements import judgement_sentences
from mctskernel.report.predictions import accuracy_sentences
from mctskernel.report.view import View
from mctskernel.tree.trajectory import STARTING_KERNEL, Step, trajectory

NOTEWORTHY = 1.15
"""The factor from which on a count that moved is worth a word."""


class StoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the path. `gain` and `speedup` are times over times; `moved` is the count that moved most, in words."""

    node: int
    title: str
    time: str
    gain: float | None
    speedup: float
    moved: str
    why: str
    effects: tuple[str, ...]
    evidence: tuple[str, ...]


class Story(msgspec.Struct, frozen=True):
    """The steps of the best path, and sentences on predictions, judges and models."""

    steps: tuple[StoryStep, ...]
    notes: tuple[str, ...]


def story(view: View, best: int | None) -> Story:
    """The story of a run whose best node this is; without steps while there is none."""
    steps = trajectory(view.tree, best).steps if best is not None else ()
    return Story(tuple(_step(view, step) for step in steps), tuple(_notes(view)))


def _notes(view: View) -> Iterator[str]:
    yield from accuracy_sentences(view.tree)
    yield from judgement_sentences(view.tree)
    yield from conversation_sentences(view.conversation, view.tree)


def _step(view: View, step: Step) -> StoryStep:
    comparison = view.comparison(step.node)
    return StoryStep(
        node=step.node,
        title=step.edit.title if step.edit else STARTING_KERNEL,
        time=time_text(step.seconds) if step.seconds is not None else "",
        gain=step.gain if step.edit and step.gain > 0 else None,
        speedup=step.speedup,
        moved=moved_most(comparison) if comparison else "",
        why=step.edit.rationale if step.edit else "",
        effects=comparison.sentences if comparison else (),
        evidence=account(view.evaluation(step.node)),
    )


def moved_most(comparison: Comparison) -> str:
    """The count behind an edit's effect that moved by the largest factor: `sectors a request 32 to 4`; or nothing."""
    counts = {count.name: count for term in comparison.moved for count in term.counts}
    found = max(counts.values(), key=_factor, default=None)
    if found is None or _factor(found) < math.log(NOTEWORTHY):
        return ""
    return f"{found.title} {_number(found.before)} to {_number(found.after)}"


def _factor(count: CountChange) -> float:
    """The logarithm of the factor, up or down; a count that came from or went to nothing counts as a large one."""
    if count.before <= 0 or count.after <= 0:
        return math.log(100) if count.before != count.after else 0.0
    return abs(math.log(count.after / count.before))


def _number(value: float) -> str:
    return count_text(value) if value >= 1000 else f"{value:.3g}"
