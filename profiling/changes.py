"""What an edit changed: which parts of the time moved, which counts explain it, and what binds now.

Modelled kernels are compared by the model's terms, measured ones by how long each unit was busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.quantities import byte_text, count_text, ratio_text, time_text
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import busy_times
from mctskernel.profiling.guardrails import NOISE, beside
from mctskernel.profiling.model.explanation import STRONG, explain, launches_of, summed
from mctskernel.profiling.model.price import Term, log_ratio_sigma

MOVED = 1.05  # the factor from which a term or a count has moved
MOST_TERMS = 3
MOST_COUNTS = 2


@dataclass(frozen=True)
class CountChange:
    """A counter that moved, by Nsight Compute's name, and what readers call it."""

    name: str
    title: str
    before: float
    after: float

    @property
    def size(self) -> float:
        """How far it moved, up or down: the logarithm of the factor."""
        known = self.before > 0 and self.after > 0
        return abs(math.log(self.after / self.before)) if known else math.inf


@dataclass(frozen=True)
class MovedTerm:
    """A part of the time that moved: its seconds alone, and the counts behind it, the one that moved most first."""

    name: str
    before: float
    after: float
    counts: tuple[CountChange, ...] = ()


@dataclass(frozen=True)
class Binding:
    """The part of the time that binds, and the seconds that it takes alone."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same task: seconds at the first search shape, and the parts that moved.

    `log_sigma` is one standard deviation of the logarithm of the ratio's error. The part that moved by the most
    seconds comes first.
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
    before, after = parent.timings[0].seconds, beside(child.timings[0], parent.timings[0]).seconds
    old, new = _parts(parent), _parts(child)
    least = STRONG * max(before, after)
    pairs = [(name, old.get(name, 0.0), new.get(name, 0.0)) for name in {**old, **new}] if old and new else []
    moved = tuple(
        _explained(MovedTerm(name, first, second), parent, child)
        for name, first, second in sorted(pairs, key=lambda pair: -abs(pair[2] - pair[1]))
        if _has_moved(first, second) and abs(second - first) >= least
    )
    return Comparison(child.source, before, after, _log_sigma(parent, child), moved, _first(old), _first(new))


def _log_sigma(parent: Evaluation, child: Evaluation) -> float:
    before, after = launches_of(parent), launches_of(child)
    return log_ratio_sigma(summed(before), summed(after)) if before and after else math.log1p(NOISE)


def _is_timed(evaluation: Evaluation) -> bool:
    return evaluation.ok and bool(evaluation.timings) and evaluation.timings[0].seconds > 0


def _parts(evaluation: Evaluation) -> Mapping[str, float]:
    """Seconds that each part of the time takes alone, the one that binds first."""
    if found := explain(evaluation):
        return {each.name: each.seconds for each in found.terms}
    return {each.name: each.seconds for each in busy_times(evaluation.counters)}


def _first(parts: Mapping[str, float]) -> Binding | None:
    return next((Binding(name, seconds) for name, seconds in parts.items()), None)


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
    return replace(term, counts=tuple(sorted(agreeing, key=lambda c: -c.size)))


def _sentences(found: Comparison) -> Iterator[str]:
    yield _headline(found)
    for term in found.moved[:MOST_TERMS]:
        counts = "; ".join(map(_count_text, term.counts[:MOST_COUNTS]))
        moved = f"{_capital(term.name)} {_move_text(term.before, term.after)}"
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
