"""What an edit changed: which parts of the time moved, which counts explain it, and what binds now.

Modelled kernels are compared by the model's terms. Measured ones have none, so they are compared by how long their
counters say that each unit was busy; what each unit did to the time is then unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from mctskernel.core.evaluation import Evaluation, LaunchTerms, Source
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import busy_times
from mctskernel.profiling.guardrails import NOISE, beside
from mctskernel.profiling.model.explanation import STRONG, explain_launches, launches_of, summed
from mctskernel.profiling.model.price import Term, combined, log_ratio_sigma
from mctskernel.profiling.quantities import byte_text, count_text, ratio_text, time_text

MOVED = 1.05
"""The factor from which a term or a count has moved."""

MOST_TERMS = 3
MOST_COUNTS = 2


@dataclass(frozen=True)
class CountChange:
    """A counter that moved, by Nsight Compute's name, and what readers call it."""

    name: str
    title: str
    before: float
    after: float


@dataclass(frozen=True)
class MovedTerm:
    """A part of the time that moved: its seconds, and the counts behind it, the one that moved most first.

    `effect` is by how many seconds it changed the time, None where that isn't known, as for measured kernels.
    """

    name: str
    before: float
    after: float
    effect: float | None = None
    counts: tuple[CountChange, ...] = ()


@dataclass(frozen=True)
class Binding:
    """The part of the time that binds, and the seconds that it takes alone."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same task: seconds at the first search shape, and the parts that moved.

    `log_sigma` is one standard deviation of the logarithm of the ratio's error. Moved parts come in the order of what
    they did to the time or, where that isn't known, of the seconds by which they moved.
    """

    source: Source
    before: float
    after: float
    log_sigma: float
    moved: tuple[MovedTerm, ...]
    binding_before: Binding | None
    binding_after: Binding | None

    @property
    def is_tie(self) -> bool:
        """Whether the times differ by no more than one standard deviation of what is known of their ratio."""
        return abs(math.log(self.after / self.before)) <= self.log_sigma

    @property
    def sentences(self) -> tuple[str, ...]:
        """What happened to the time, to its parts, strongest first, and what binds now."""
        return tuple(_sentences(self))


def compare(parent: Evaluation, child: Evaluation) -> Comparison | None:
    """What became of a kernel's time when it was edited; None unless both were timed by the same means."""
    if parent.source is not child.source or not (_is_timed(parent) and _is_timed(child)):
        return None
    return _by_terms(parent, child) or _by_counters(parent, child)


def _is_timed(evaluation: Evaluation) -> bool:
    return evaluation.ok and bool(evaluation.timings) and evaluation.timings[0].seconds > 0


def _by_terms(parent: Evaluation, child: Evaluation) -> Comparison | None:
    before, after = launches_of(parent), launches_of(child)
    if not before or not after:
        return None
    old, new = explain_launches(before), explain_launches(after)
    least = STRONG * max(old.seconds, new.seconds)
    moved = tuple(
        _explained(change, parent, child)
        for change in term_changes(before, after)
        if _has_moved(change.before, change.after) and abs(change.effect or 0.0) >= least
    )
    sigma = log_ratio_sigma(summed(before), summed(after))
    first, second = (Binding(each.binding.name, each.binding.seconds) for each in (old, new))
    return Comparison(child.source, old.seconds, new.seconds, sigma, moved, first, second)


def _by_counters(parent: Evaluation, child: Evaluation) -> Comparison:
    before, after = parent.timings[0].seconds, beside(child.timings[0], parent.timings[0]).seconds
    old, new = ({each.name: each.seconds for each in busy_times(e.counters)} for e in (parent, child))
    least = STRONG * max(before, after)
    pairs = [(name, old.get(name, 0.0), new.get(name, 0.0)) for name in {**old, **new}] if old and new else []
    moved = tuple(
        _explained(MovedTerm(name, first, second), parent, child)
        for name, first, second in sorted(pairs, key=lambda pair: -abs(pair[2] - pair[1]))
        if _has_moved(first, second) and abs(second - first) >= least
    )
    return Comparison(child.source, before, after, math.log1p(NOISE), moved, _longest(old), _longest(new))


def _longest(busy: Mapping[str, float]) -> Binding | None:
    return next((Binding(name, seconds) for name, seconds in busy.items()), None)


def _has_moved(before: float, after: float) -> bool:
    return max(before, after) > MOVED * min(before, after)


_SECTORS_PER_REQUEST = (names.SECTORS_PER_LOAD, names.SECTORS_PER_STORE)

_BEHIND: Mapping[str, tuple[str, ...]] = {
    Term.ISSUE: (names.INSTRUCTIONS, names.ACTIVE_LANES),
    Term.FMA: (names.FMA_INSTRUCTIONS,),
    Term.ALU: (names.ALU_INSTRUCTIONS,),
    Term.GLOBAL_WAVEFRONTS: (*_SECTORS_PER_REQUEST, names.LOAD_REQUESTS, names.STORE_REQUESTS),
    Term.SHARED_WAVEFRONTS: (names.SHARED_WAVEFRONTS, names.BANK_CONFLICTS),
    Term.L2: (names.L2_READS, names.L2_WRITES, *_SECTORS_PER_REQUEST),
    Term.DRAM: (names.DRAM_READ, names.DRAM_WRITE),
    Term.LATENCY: (names.INSTRUCTIONS, names.LOAD_REQUESTS, names.WARPS_ACTIVE),
    Term.ATOMICS: (names.L2_ATOMICS, names.L2_REDUCTIONS),
    Term.TAIL: (names.SM_ACTIVE, names.WAVES),
}
"""The counters that say why a term moved."""

_RELIEVING = frozenset({names.ACTIVE_LANES, names.WARPS_ACTIVE, names.SM_ACTIVE, names.WAVES})
"""Those of which more takes less time."""

_TITLES: Mapping[str, str] = {
    names.INSTRUCTIONS: "warp instructions",
    names.ACTIVE_LANES: "lanes at work",
    names.FMA_INSTRUCTIONS: "multiply-adds",
    names.ALU_INSTRUCTIONS: "integer instructions",
    names.SECTORS_PER_LOAD: "sectors per load",
    names.SECTORS_PER_STORE: "sectors per store",
    names.LOAD_REQUESTS: "loads",
    names.STORE_REQUESTS: "stores",
    names.SHARED_WAVEFRONTS: "cycles of shared memory",
    names.BANK_CONFLICTS: "bank conflicts",
    names.L2_READS: "sectors read from L2",
    names.L2_WRITES: "sectors written to L2",
    names.DRAM_READ: "read from DRAM",
    names.DRAM_WRITE: "written to DRAM",
    names.WARPS_ACTIVE: "warps resident",
    names.WAVES: "waves of blocks",
    names.L2_ATOMICS: "sectors of atomics",
    names.L2_REDUCTIONS: "sectors of reductions",
    names.SM_ACTIVE: "multiprocessors at work",
}


def _explained(term: MovedTerm, parent: Evaluation, child: Evaluation) -> MovedTerm:
    """With the counters that moved the way that the term did, the one that moved most first."""
    before, after = names.with_ratios(parent.counters), names.with_ratios(child.counters)
    changes = [
        CountChange(name, _TITLES[name], before[name], after[name])
        for name in _BEHIND.get(term.name, ())
        if name in before and name in after and _has_moved(before[name], after[name])
    ]
    rises = term.after > term.before
    agreeing = [c for c in changes if (c.after > c.before) == (rises == (c.name not in _RELIEVING))]
    return replace(term, counts=tuple(sorted(agreeing, key=lambda c: -_size(c.before, c.after))))


def _size(before: float, after: float) -> float:
    """How far a number moved, up or down."""
    return abs(math.log(after / before)) if before > 0 and after > 0 else math.inf


def _sentences(found: Comparison) -> Iterator[str]:
    yield _headline(found)
    for term in found.moved[:MOST_TERMS]:
        counts = "; ".join(map(_count_text, term.counts[:MOST_COUNTS]))
        moved = f"{_capital(term.name)} {_move_text(term.before, term.after)}{_effect_text(term)}"
        yield f"{moved}: {counts}." if counts else f"{moved}."
    old, new = found.binding_before, found.binding_after
    if old is None or new is None:
        if found.source is not Source.RECORDED:
            yield "Without utilisation counters of both there is no telling what binds."
    elif old.name == new.name:
        yield f"{_capital(new.name)} still binds ({time_text(new.seconds, 3)} alone)."
    else:
        yield f"{_capital(old.name)} no longer binds; now {new.name} does ({time_text(new.seconds, 3)} alone)."


def _headline(found: Comparison) -> str:
    times = f"{time_text(found.before, 3)} -> {time_text(found.after, 3)}"
    sigma = f"{math.expm1(found.log_sigma):.0%}"
    if found.is_tie:
        if not found.moved:
            return f"A tie: nothing that matters moved ({found.source}, {times})."
        return f"A tie: {found.source} time {times}, a ratio that is uncertain by {sigma}."
    return f"{_capital(found.source)} time {_move_text(found.before, found.after)}, give or take {sigma}."


def _move_text(before: float, after: float) -> str:
    verb = "fell" if after < before else "rose"
    if not before or not after:
        return f"{verb} from {_or_nothing(before)} to {_or_nothing(after)}"
    return f"{verb} {ratio_text(after / before)} ({time_text(before, 3)} -> {time_text(after, 3)})"


def _or_nothing(seconds: float) -> str:
    return time_text(seconds, 3) if seconds else "nothing"


def _effect_text(term: MovedTerm) -> str:
    if term.effect is None:
        return ""
    seconds = time_text(abs(term.effect), 3)
    return (
        f", which took {seconds} off the time" if term.effect < 0 else f", which added {seconds} to the time"
    )


def _count_text(count: CountChange) -> str:
    def text(value: float) -> str:
        if count.name in {names.DRAM_READ, names.DRAM_WRITE}:
            return byte_text(value)
        if count.name.endswith(".sum"):
            return count_text(value)
        return f"{value:.3g}{'%' if 'pct' in count.name else ''}"

    return f"{count.title} {text(count.before)} -> {text(count.after)}"


def _capital(name: str) -> str:
    return (
        name.upper().replace("PIPE", "pipe") if name in {Term.FMA, Term.FP64} else name[:1].upper() + name[1:]
    )


# What each term's change did to the time when one kernel became another: all terms move from the old values to the new
# ones in small steps, and the change of the time in a term's steps is its effect. Effects add up to the whole change.
# In the limit this is Aumann and Shapley's price of a shared cost (Values of Non-Atomic Games, 1974).

STEPS = 16
"""Small enough that the order in which terms step hardly matters."""

NOTHING = LaunchTerms("", 0.0, {})


def term_changes(before: Sequence[LaunchTerms], after: Sequence[LaunchTerms]) -> tuple[MovedTerm, ...]:
    """Every term of either plan, the one with the largest effect first; the effects add up to the time's change."""
    old, new = summed(before), summed(after)
    effects: dict[str, float] = {}
    for first, second in _pairs(before, after):
        for name, effect in _effects(first.terms, second.terms).items():
            effects[name] = effects.get(name, 0.0) + effect
    strongest_first = sorted(effects.items(), key=lambda item: -abs(item[1]))
    return tuple(
        MovedTerm(name, old.get(name, 0.0), new.get(name, 0.0), effect) for name, effect in strongest_first
    )


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
