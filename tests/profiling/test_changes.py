"""What an edit did: the terms that moved with their numbers, the counts behind them, ties, and what binds now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Evaluation, LaunchTerms, Outcome, Source, Timing
from mctskernel.profiling import counters as names
from mctskernel.profiling.changes import MOST_TERMS, Comparison, compare
from mctskernel.profiling.model.price import Term, combined
from mctskernel.profiling.quantities import byte_text, count_text, ratio_text, time_text

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


SCATTERED = {names.STORE_REQUESTS: 1e6, names.STORE_SECTORS: 32e6, names.INSTRUCTIONS: 5e6}
COALESCED = {names.STORE_REQUESTS: 1e6, names.STORE_SECTORS: 4e6, names.INSTRUCTIONS: 5.1e6}

# The two sides of an edit that put a transpose's tiles into shared memory, as an H100 counted them.
BEFORE = measured(
    6.219e-4,
    {
        names.TIME: 6.219e-4,
        names.SM_ACTIVE: 99.66,
        names.WARPS_ACTIVE: 76.31,
        names.ISSUE_ACTIVE: 7.487,
        names.DRAM_READ: 2.824e8,
        names.DRAM_THROUGHPUT: 27.27,
        names.STORE_REQUESTS: 2.097e6,
        names.STORE_SECTORS: 3.355e7,
        names.WAVEFRONTS: 4.309e7,
        names.WAVEFRONTS_BUSY: 26.58,
        names.SHARED_WAVEFRONTS: 4.194e6,
        names.L2_WRITES: 3.058e7,
        names.L2_BUSY: 23.93,
        names.L2_RECEIVING: 73.75,
    },
)
AFTER = measured(
    1.886e-4,
    {
        names.TIME: 1.873e-4,
        names.SM_ACTIVE: 98.57,
        names.WARPS_ACTIVE: 96.35,
        names.ISSUE_ACTIVE: 29.13,
        names.DRAM_READ: 2.684e8,
        names.DRAM_THROUGHPUT: 85.89,
        names.STORE_REQUESTS: 2.097e6,
        names.STORE_SECTORS: 8.389e6,
        names.WAVEFRONTS: 1.022e7,
        names.WAVEFRONTS_BUSY: 21.3,
        names.SHARED_WAVEFRONTS: 5.37e6,
        names.L2_WRITES: 8.389e6,
        names.L2_BUSY: 33.41,
        names.L2_RECEIVING: 40.58,
    },
)


def test_the_term_that_fell_is_told_with_its_numbers_and_what_is_behind_it() -> None:
    parent = modelled(SCATTERED, GLOBAL_WAVEFRONTS=312, FMA=65)
    child = modelled(COALESCED, GLOBAL_WAVEFRONTS=39, FMA=65)
    found = comparison(parent, child)
    head, moved, binds = found.sentences
    gain = parent.timings[0].seconds - child.timings[0].seconds
    assert head.startswith(f"Modelled time fell {ratio_text(found.before / found.after)} (")
    assert moved == (
        f"Global wavefronts fell 8.0x (312 us -> 39 us), which took {time_text(gain, 3)} off the time: "
        "sectors per store 32 -> 4."
    )
    assert binds == "Global wavefronts no longer binds; now fp32 pipe does (65 us alone)."


def test_a_regression_is_told_as_one() -> None:
    head, moved, binds = comparison(modelled(DRAM=100), modelled(DRAM=100, ISSUE=300)).sentences
    assert "Modelled time rose" in head
    assert "Instruction issue rose from nothing to 300 us, which added" in moved
    assert "DRAM no longer binds; now instruction issue does" in binds


def test_counts_that_moved_the_other_way_are_not_behind_it() -> None:
    before = {names.LOAD_REQUESTS: 4e6, names.LOAD_SECTORS: 16e6}
    after = {names.LOAD_REQUESTS: 1e6, names.LOAD_SECTORS: 16e6}
    found = comparison(modelled(before, GLOBAL_WAVEFRONTS=300), modelled(after, GLOBAL_WAVEFRONTS=100))
    assert [count.title for count in found.moved[0].counts] == ["loads"]
    assert found.moved[0].counts[0].before == 4e6


def test_more_resident_warps_are_behind_less_latency() -> None:
    low, high = {names.WARPS_ACTIVE: 25.0}, {names.WARPS_ACTIVE: 100.0}
    found = comparison(modelled(low, LATENCY=300), modelled(high, LATENCY=100))
    assert "warps resident 25% -> 100%" in found.sentences[1]
    assert not comparison(modelled(high, LATENCY=300), modelled(low, LATENCY=100)).moved[0].counts


def test_at_most_a_handful_of_sentences_the_strongest_first() -> None:
    many = dict.fromkeys(("DRAM", "L2", "ISSUE", "FMA", "ALU", "LATENCY"), 100.0)
    found = comparison(modelled(**many), modelled(**{**many, **dict.fromkeys(many, 10.0), "ALU": 20.0}))
    effects = [abs(term.effect or 0.0) for term in found.moved]
    assert effects == sorted(effects, reverse=True)
    assert len(found.sentences) == 2 + MOST_TERMS


def test_a_change_within_the_uncertainty_is_a_tie() -> None:
    found = comparison(modelled(DRAM=100, ISSUE=50), modelled(DRAM=100, ISSUE=45))
    assert found.is_tie
    assert found.sentences[0].startswith("A tie: ")
    assert not comparison(modelled(DRAM=100), modelled(DRAM=50)).is_tie


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([term.value for term in Term]), st.floats(1e-7, 1e-2), min_size=1))
def test_a_kernel_compared_with_itself_has_not_moved(terms: dict[str, float]) -> None:
    kernel = of_terms(terms)
    found = comparison(kernel, kernel)
    assert found.is_tie
    assert not found.moved
    assert found.binding_before == found.binding_after
    assert found.sentences[0].startswith("A tie: nothing that matters moved")
    assert "still binds" in found.sentences[1]


def test_measured_kernels_are_told_by_what_their_units_were_busy_with() -> None:
    found = comparison(BEFORE, AFTER)
    assert found.source is Source.MEASURED
    assert found.sentences == (
        "Measured time fell 3.3x (622 us -> 189 us), give or take 2%.",
        "L2 fell 6.0x (459 us -> 76 us): "
        "sectors per store 16 -> 4; sectors written to L2 30.6 million -> 8.39 million.",
        "Latency fell 16.5x (161 us -> 9.76 us): warps resident 76.3% -> 96.3%.",
        "Global wavefronts fell 7.9x (149 us -> 18.9 us): sectors per store 16 -> 4.",
        "L2 no longer binds; now DRAM does (175 us alone).",
    )
    assert all(term.effect is None for term in found.moved)


def test_without_counters_only_the_time_is_known() -> None:
    found = comparison(replace(BEFORE, counters={}), replace(AFTER, counters={}))
    assert not found.moved
    assert found.sentences == (
        "Measured time fell 3.3x (622 us -> 189 us), give or take 2%.",
        "Without utilisation counters of both there is no telling what binds.",
    )


def test_noise_is_no_gain() -> None:
    assert comparison(BEFORE, replace(BEFORE, timings=(replace(BEFORE.timings[0], seconds=6.15e-4),))).is_tie


@pytest.mark.parametrize(
    "other",
    [
        Evaluation(Outcome.WRONG_RESULT, Source.MODELLED, "off by one"),
        Evaluation(Outcome.OK, Source.MODELLED),
        BEFORE,
    ],
)
def test_what_was_not_timed_by_the_same_means_is_not_compared(other: Evaluation) -> None:
    assert compare(modelled(DRAM=100), other) is None
    assert compare(other, modelled(DRAM=100)) is None


def test_quantities_as_people_read_them() -> None:
    assert [ratio_text(each) for each in (4.0, 0.25, 1.5, 1.03, 250.0)] == [
        "4.0x",
        "4.0x",
        "1.50x",
        "3.0%",
        "250x",
    ]
    assert [time_text(each) for each in (1.5, 93.42e-6, 2e-9)] == ["1.5 s", "93.42 us", "2 ns"]
    assert [count_text(each) for each in (1.02e9, 5e6, 294912.0)] == ["1.02 billion", "5 million", "294,912"]
    assert [byte_text(each) for each in (2.68e8, 1e3, 12.0)] == ["268 MB", "1 kB", "12 bytes"]
