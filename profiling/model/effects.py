"""What each term's change did to the modelled time, when one kernel became another.

The soft sum T of terms t with the norm p satisfies T^p = sum t^p, so a change of the sum divides among the terms in
proportion to the change of their powers:

    effect of t  =  (t_after^p - t_before^p) (T_after - T_before) / (T_after^p - T_before^p)

The effects add up to the whole change, a term that stays as it is has none, and where the sum hardly changes the
quotient tends to its derivative. Terms that nothing overlaps with count as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from mctskernel.core.evaluation import LaunchTerms
from mctskernel.profiling.model.explanation import summed
from mctskernel.profiling.model.price import ADDED, NORM, soft_sum

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
    names = dict.fromkeys((*before, *after))
    added = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in names if name in ADDED}
    overlapped = [name for name in names if name not in ADDED]
    old, new = ([terms.get(name, 0.0) for name in overlapped] for terms in (before, after))
    first, second = soft_sum(old), soft_sum(new)
    scale = max(first, second)
    if not scale:
        return added
    # In units of the larger sum, so that powers of microseconds keep their digits.
    moved = [(b / scale) ** NORM - (a / scale) ** NORM for a, b in zip(old, new, strict=True)]
    rise = math.fsum(moved)
    slope = (second - first) / rise if abs(rise) > 1e-9 else scale / NORM
    return {**dict(zip(overlapped, (slope * power for power in moved), strict=True)), **added}
