"""What each term's change did to the modelled time, when one kernel became another.

All terms walk from what they were to what they are in small steps, one after the other; what the time does in a
term's steps is its effect. So the effects add up to the whole change, and a term that stays as it is has none. In the
limit of small steps this is the price that Aumann and Shapley give each part of a shared cost (Values of Non-Atomic
Games, 1974).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from mctskernel.core.evaluation import LaunchTerms
from mctskernel.profiling.model.explanation import summed
from mctskernel.profiling.model.price import combined

STEPS = 16
"""Small enough that the order in which terms step hardly matters."""

NOTHING = LaunchTerms("", 0.0, {})


@dataclass(frozen=True)
class TermChange:
    """A term's seconds before and after, over all launches, and the seconds by which it changed the time."""

    name: str
    before: float
    after: float
    effect: float


def term_changes(before: Sequence[LaunchTerms], after: Sequence[LaunchTerms]) -> tuple[TermChange, ...]:
    """Every term of either plan, the one with the largest effect first; the effects add up to the time's change."""
    old, new = summed(before), summed(after)
    effects: dict[str, float] = {}
    for first, second in _pairs(before, after):
        for name, effect in _effects(first.terms, second.terms).items():
            effects[name] = effects.get(name, 0.0) + effect
    changes = [
        TermChange(name, old.get(name, 0.0), new.get(name, 0.0), effect) for name, effect in effects.items()
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.effect)))


def _pairs(
    before: Sequence[LaunchTerms], after: Sequence[LaunchTerms]
) -> Iterator[tuple[LaunchTerms, LaunchTerms]]:
    """Launches that answer to each other: in order where there are as many, else those of the same kernels."""
    if len(before) == len(after):
        yield from zip(before, after, strict=True)
        return
    names, others = [launch.kernel for launch in before], [launch.kernel for launch in after]
    for tag, start, end, other_start, other_end in SequenceMatcher(
        None, names, others, autojunk=False
    ).get_opcodes():
        old, new = before[start:end], after[other_start:other_end]
        if tag == "equal":
            yield from zip(old, new, strict=True)
        else:
            yield from ((launch, NOTHING) for launch in old)
            yield from ((NOTHING, launch) for launch in new)


def _effects(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Seconds by which each term changed the time of one launch."""
    terms = dict.fromkeys((*before, *after), 0.0) | dict(before)
    moving = [name for name in terms if terms[name] != after.get(name, 0.0)]
    effects = dict.fromkeys(terms, 0.0)
    seconds = combined(terms)
    for step in range(1, STEPS + 1):
        # Going back and forth, no term profits from always being first.
        for name in moving if step % 2 else reversed(moving):
            start, end = before.get(name, 0.0), after.get(name, 0.0)
            terms[name] = end if step == STEPS else start + (end - start) * step / STEPS
            earlier, seconds = seconds, combined(terms)
            effects[name] += seconds - earlier
    return effects
