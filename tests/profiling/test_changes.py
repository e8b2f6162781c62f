"""What an edit did: the terms that moved with their numbers, the counts behind them, ties, and what binds now."""

from mctskernel.core.evaluation import Evaluation, LaunchTerms, Outcome, Source, Timing
from mctskernel.profiling import counters as names
from mctskernel.profiling.changes import Comparison, compare
from mctskernel.profiling.model.price import Term, combined

MICRO = 1e-6


def modelled(counters: dict[str, float] | None = None, **microseconds: float) -> Evaluation:
    terms = {Term[name].value: value * MICRO for name, value in microseconds.items()}
    return of_terms(terms, counters)


def of_terms(terms: dict[str, float], counters: dict[str, float] | None = None) -> Evaluation:
    seconds = combined(terms)
    return Evaluation(
        Outcome.OK,
        Source.MODELLED,
        timings=(Timing("n=1", seconds, seconds, seconds),),
        counters=counters or {},
        terms=terms,
        launches=(LaunchTerms("k", seconds, terms),),
    )


def measured(seconds: float, counters: dict[str, float]) -> Evaluation:
    timing = Timing("n=1", seconds, seconds, seconds)
    return Evaluation(Outcome.OK, Source.MEASURED, timings=(timing,), counters=counters)


def comparison(parent: Evaluation, child: Evaluation) -> Comparison:
    found = compare(parent, child)
    assert found is not None
    return found


# The two sides of an edit that put a transpose's tiles into shared memory, as an H100 counted them.
BEFORE = measured(
    6.219e-4,
    {
        names.TIME: 6.219e-4,
        names.SM_ACTIVE: 99.66,
        names.DRAM_THROUGHPUT: 27.27,
        names.STORE_REQUESTS: 2.097e6,
        names.STORE_SECTORS: 3.355e7,
        names.L2_RECEIVING: 73.75,
    },
)
AFTER = measured(
    1.886e-4,
    {
        names.TIME: 1.873e-4,
        names.SM_ACTIVE: 98.57,
        names.DRAM_THROUGHPUT: 85.89,
        names.STORE_REQUESTS: 2.097e6,
        names.STORE_SECTORS: 8.389e6,
        names.L2_RECEIVING: 40.58,
    },
)


def test_a_change_within_the_uncertainty_is_a_tie() -> None:
    found = comparison(modelled(DRAM=100, ISSUE=50), modelled(DRAM=100, ISSUE=45))
    assert found.is_tie
    assert found.sentences[0].startswith("A tie: ")
    assert not comparison(modelled(DRAM=100), modelled(DRAM=50)).is_tie


def test_measured_kernels_are_told_by_what_their_units_were_busy_with() -> None:
    found = comparison(BEFORE, AFTER)
    assert found.source is Source.MEASURED
    first, moved, *_, last = found.sentences
    assert first == "Measured time fell 3.3x (622 us -> 189 us), give or take 2%."
    assert moved == "L2 fell 6.0x (459 us -> 76 us): sectors per store 16 -> 4."
    assert last == "L2 no longer binds; now DRAM does (175 us alone)."
