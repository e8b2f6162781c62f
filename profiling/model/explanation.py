"""Which term binds a kernel, which is next, and what the time would be if one fell.

Pure functions of the seconds that each term would take alone, as an evaluation records them: no GPU, and nothing
is modelled again. A plan's time is the sum over its launches, each of which combines its terms as `price` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Evaluation, LaunchTerms
from mctskernel.core.quantities import ratio_text, time_text
from mctskernel.profiling.model.price import ADDED, Term, combined, log_sigma, shares, term_sigmas

STRONG = 0.03  # the fraction of the time from which a term is large enough for a sentence

PER_SM = frozenset(
    {
        Term.ISSUE,
        Term.FMA,
        Term.ALU,
        Term.SPECIAL,
        Term.FP64,
        Term.TENSOR,
        Term.GLOBAL_WAVEFRONTS,
        Term.SHARED_WAVEFRONTS,
    }
)
"""Terms that every multiprocessor has to itself: where blocks don't divide evenly, the busiest one decides."""

MEANINGS: Mapping[str, str] = {
    Term.ISSUE: "schedulers issuing warp instructions",
    Term.FMA: "multiply-adds, float and integer",
    Term.ALU: "integer, logic and compare instructions",
    Term.SPECIAL: "exp, sqrt, divisions, conversions",
    Term.FP64: "double precision",
    Term.TENSOR: "tensor cores",
    Term.GLOBAL_WAVEFRONTS: "L1 passing global and local accesses",
    Term.SHARED_WAVEFRONTS: "shared memory and shuffles",
    Term.L2: "sectors between L1 and L2",
    Term.DRAM: "bytes between L2 and DRAM",
    Term.LATENCY: "waves of blocks, each as long as a warp's dependent chain",
    Term.ATOMICS: "atomic operations taking turns",
    Term.BLOCK_LAUNCH: "starting blocks",
    Term.EXPOSED: "waits that too few blocks on an SM can't fill with work",
    Term.TAIL: "SMs idle while others still work",
    Term.LAUNCH: "starting the kernels",
}
"""What the GPU does in the seconds of each term."""


@dataclass(frozen=True)
class ExplainedTerm:
    """A term: its seconds alone, the fraction of the time that it explains, and the time if it were less.

    All of a plan: the seconds are the sum over its launches, and it is halved or free in all of them. `log_sigma`
    is what an error of the term makes of the time: one standard deviation of its logarithm.
    """

    name: str
    seconds: float
    share: float
    seconds_if_half: float
    seconds_if_free: float
    log_sigma: float


@dataclass(frozen=True)
class Explanation:
    """A modelled time in seconds with its terms, the one that explains most of it first; shares add up to one.

    `log_sigma` is one standard deviation of the logarithm of the modelled over the true time; `kernels` are the seconds
    of each kernel that the plan launches.
    """

    seconds: float
    log_sigma: float
    terms: tuple[ExplainedTerm, ...]
    kernels: Mapping[str, float]

    @property
    def binding(self) -> ExplainedTerm:
        return self.terms[0]

    @property
    def next(self) -> ExplainedTerm | None:
        return self.terms[1] if len(self.terms) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds that the true time lies between, one standard deviation to either side."""
        factor = math.exp(self.log_sigma)
        return self.seconds / factor, self.seconds * factor


def explain(evaluation: Evaluation) -> Explanation | None:
    """The explanation of a modelled evaluation, at its first search shape; None for one without terms."""
    launches = launches_of(evaluation)
    return explain_launches(launches) if launches else None


def launches_of(evaluation: Evaluation) -> tuple[LaunchTerms, ...]:
    """The launches of a modelled plan; one recorded without them is one launch with the sum of their terms."""
    if evaluation.launches or not evaluation.timings or not any(evaluation.terms.values()):
        return evaluation.launches
    return (LaunchTerms("", evaluation.timings[0].seconds, evaluation.terms),)


def explain_launches(launches: Sequence[LaunchTerms]) -> Explanation:
    """The explanation of a plan's time from its launches, of which there is at least one that takes time."""
    total = math.fsum(launch.seconds for launch in launches)
    sums = summed(launches)
    sigmas = term_sigmas(sums)
    by_launch = [(launch.seconds / total, shares_of(launch)) for launch in launches]
    explained = [
        ExplainedTerm(
            name,
            seconds,
            math.fsum(weight * each.get(name, 0.0) for weight, each in by_launch),
            math.fsum(seconds_with(launch, name, 0.5) for launch in launches),
            math.fsum(seconds_with(launch, name, 0.0) for launch in launches),
            sigmas.get(name, 0.0),
        )
        for name, seconds in sums.items()
        if seconds > 0
    ]
    kernels: dict[str, float] = {}
    for launch in launches:
        kernels[launch.kernel] = kernels.get(launch.kernel, 0.0) + launch.seconds
    strongest_first = tuple(sorted(explained, key=lambda term: -term.share))
    return Explanation(total, log_sigma(sums), strongest_first, kernels)


def summed(launches: Sequence[LaunchTerms]) -> dict[str, float]:
    """The terms of a plan: the seconds of each, added up over its launches."""
    names = dict.fromkeys(name for launch in launches for name in launch.terms)
    return {name: math.fsum(launch.terms.get(name, 0.0) for launch in launches) for name in names}


def seconds_with(launch: LaunchTerms, name: str, factor: float) -> float:
    """Seconds of a launch if one of its terms were `factor` times what it is.

    The tail falls with the terms of the multiprocessors, since it is the time by which the busiest of them needs
    longer, and exposed latency with the latency. Only ratios of combined terms are asked for, so that a time recorded
    under another rule of combination is scaled.
    """
    if name in ADDED:
        return launch.seconds - (1.0 - factor) * launch.terms.get(name, 0.0)
    busiest = _on_the_busiest(launch)
    whole = combined(busiest)
    if not whole:
        return launch.seconds
    changed = combined({**busiest, name: factor * busiest.get(name, 0.0)})
    exposed, starting = (launch.terms.get(term, 0.0) for term in (Term.EXPOSED, Term.LAUNCH))
    overlapped = launch.seconds - exposed - starting
    return overlapped * changed / whole + exposed * (factor if name == Term.LATENCY else 1.0) + starting


def shares_of(launch: LaunchTerms) -> dict[str, float]:
    """The fraction of a launch's time that each term explains; they add up to one.

    Terms weigh as they do on the busiest multiprocessor. What would be gone if all were equally busy is the tail's,
    and is taken off the terms of the multiprocessors as far as they go.
    """
    if not launch.seconds:
        return {}
    exposed, tail, starting = (
        launch.terms.get(term, 0.0) / launch.seconds for term in (Term.EXPOSED, Term.TAIL, Term.LAUNCH)
    )
    overlapped = 1.0 - exposed - starting
    found = {name: overlapped * share for name, share in shares(_on_the_busiest(launch)).items()}
    per_sm = math.fsum(share for name, share in found.items() if name in PER_SM)
    others = math.fsum(found.values()) - per_sm
    from_sms = min(tail, per_sm)
    left_of_sms = 1.0 - from_sms / per_sm if per_sm else 0.0
    left_of_others = 1.0 - (tail - from_sms) / others if others else 0.0
    found = {
        name: share * (left_of_sms if name in PER_SM else left_of_others) for name, share in found.items()
    }
    return {**found, Term.EXPOSED.value: exposed, Term.TAIL.value: tail, Term.LAUNCH.value: starting}


def _on_the_busiest(launch: LaunchTerms) -> dict[str, float]:
    """The terms that overlap, with those of the multiprocessors as the busiest one has them."""
    return {
        name: seconds * (launch.imbalance if name in PER_SM else 1.0)
        for name, seconds in launch.terms.items()
        if name not in ADDED
    }


def sentences(found: Explanation) -> tuple[str, ...]:
    """What binds, what is next, and what relieving the first would bring, with numbers."""
    first, second = found.binding, found.next
    binds = (
        f"Modelled at {time_text(found.seconds, 3)} (+-{math.expm1(found.log_sigma):.0%}), bound by {first.name}: "
        f"{time_text(first.seconds, 3)} alone, {first.share:.0%} of the time."
    )
    parts = [f"{name} takes {seconds / found.seconds:.0%}" for name, seconds in found.kernels.items()]
    by_kernel = (f"Of the time {', '.join(parts)}.",) if len(parts) > 1 else ()
    if second is None:
        return (binds, *by_kernel)
    follows = (
        f"Next is {second.name}: {time_text(second.seconds, 3)} alone, {second.share:.0%} of the time."
        if second.share >= STRONG
        else f"Nothing else explains more than {STRONG:.0%} of it."
    )
    return (binds, follows, _if_less(found, first), *by_kernel)


def doubt(found: Explanation) -> str:
    """How far the modelled time is to be trusted, and which term's error would move it most."""
    low, high = found.interval
    worst = max(found.terms, key=lambda term: term.log_sigma)
    return (
        f"The true time is expected between {time_text(low, 3)} and {time_text(high, 3)} two times out of three; most "
        f"of the doubt is about {worst.name}, whose own error moves the time by {math.expm1(worst.log_sigma):.0%}."
    )


def _if_less(found: Explanation, term: ExplainedTerm) -> str:
    half, free = (
        f"{time_text(seconds, 3)} ({ratio_text(found.seconds / seconds)} faster)" if seconds else "no time"
        for seconds in (term.seconds_if_half, term.seconds_if_free)
    )
    return f"With {term.name} halved it would take {half}, with {term.name} gone {free}."
