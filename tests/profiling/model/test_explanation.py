"""An explanation's numbers: shares, what-ifs and the interval follow from the terms, and its sentences carry them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Evaluation, LaunchTerms, Outcome, Source, Timing
from mctskernel.profiling.architecture import load_architecture, occupancy
from mctskernel.profiling.machine_code.instructions import Pipe
from mctskernel.profiling.model.explanation import (
    MEANINGS,
    doubt,
    explain,
    explain_launches,
    launches_of,
    seconds_with,
    sentences,
    summed,
)
from mctskernel.profiling.model.price import Term, combined, imbalance, price
from mctskernel.profiling.model.scoreboard import Chain
from mctskernel.profiling.model.work import KernelWork

H100 = load_architecture("H100")

MICRO = 1e-6


def launch(kernel: str = "k", **microseconds: float) -> LaunchTerms:
    terms = {Term[name].value: value * MICRO for name, value in microseconds.items()}
    return LaunchTerms(kernel, combined(terms), terms)


seconds = st.one_of(st.just(0.0), st.floats(1e-8, 1e-2))
launches = st.lists(
    st.dictionaries(st.sampled_from([term.value for term in Term]), seconds, min_size=1, max_size=6).map(
        lambda terms: LaunchTerms("k", combined(terms), terms)
    ),
    min_size=1,
    max_size=3,
).filter(lambda made: sum(each.seconds for each in made) > 0)


@settings(deadline=None)
@given(launches)
def test_shares_add_up_to_one_and_the_strongest_comes_first(made: list[LaunchTerms]) -> None:
    found = explain_launches(made)
    shares = [term.share for term in found.terms]
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-6)
    assert shares == sorted(shares, reverse=True)
    assert found.binding is found.terms[0]


@settings(deadline=None)
@given(launches)
def test_less_of_a_term_never_takes_longer_and_half_lies_between(made: list[LaunchTerms]) -> None:
    found = explain_launches(made)
    assert found.seconds == pytest.approx(math.fsum(each.seconds for each in made))
    for term in found.terms:
        slack = 1e-9 * found.seconds
        assert -slack <= term.seconds_if_free <= term.seconds_if_half + slack
        assert term.seconds_if_half <= found.seconds + slack


@settings(deadline=None)
@given(
    st.floats(0, 1e9), st.integers(1, 400), st.sampled_from([Pipe.FMA, Pipe.ALU, Pipe.SPECIAL, Pipe.CONTROL])
)
def test_what_if_is_what_the_model_would_price(instructions: float, blocks: int, pipe: Pipe) -> None:
    def priced(dram_bytes: float) -> LaunchTerms:
        work = KernelWork(
            kernel="k",
            blocks=blocks,
            threads=256,
            registers=32,
            shared_bytes=0,
            occupancy=occupancy(H100, 256, 32, 0),
            instructions={pipe: instructions, Pipe.LSU: 1e6},
            chain=Chain(1000.0),
            l2_read_sectors=1e6,
            global_wavefronts=shared,
            dram_read_bytes=dram_bytes,
        )
        found = price(work, H100)
        terms = {term.value: seconds for term, seconds in found.terms.items()}
        return LaunchTerms("k", found.seconds, terms, imbalance(blocks, H100.chip.sms))

    shared = 4e7
    whole, half = priced(2e8), priced(1e8)
    # Exposed latency stays as it was, which is not quite what a lighter kernel would have.
    assert seconds_with(whole, Term.DRAM, 0.5) == pytest.approx(half.seconds, rel=0.01)
    shared = 2e7
    assert seconds_with(whole, Term.GLOBAL_WAVEFRONTS, 0.5) == pytest.approx(priced(2e8).seconds, rel=0.01)
    shared = 0.0
    assert seconds_with(whole, Term.GLOBAL_WAVEFRONTS, 0.0) == pytest.approx(priced(2e8).seconds, rel=0.01)


@settings(deadline=None)
@given(launches)
def test_the_interval_is_even_on_a_logarithmic_scale(made: list[LaunchTerms]) -> None:
    found = explain_launches(made)
    low, high = found.interval
    assert low <= found.seconds <= high
    assert low * high == pytest.approx(found.seconds**2)


def test_what_the_busiest_multiprocessor_waits_for_binds_though_it_is_little_on_average() -> None:
    terms = {Term.GLOBAL_WAVEFRONTS: 500 * MICRO, Term.LATENCY: 1000 * MICRO}
    even, uneven = combined(terms), combined({**terms, Term.GLOBAL_WAVEFRONTS: 2000 * MICRO})
    terms[Term.TAIL] = uneven - even
    found = explain_launches([LaunchTerms("k", uneven, dict(terms), imbalance=4.0)])
    by_name = {term.name: term for term in found.terms}
    assert [term.name for term in found.terms] == [Term.TAIL, Term.GLOBAL_WAVEFRONTS, Term.LATENCY]
    assert by_name[Term.TAIL].seconds_if_free == pytest.approx(even)
    assert by_name[Term.GLOBAL_WAVEFRONTS].seconds_if_free == pytest.approx(1000 * MICRO)
    assert by_name[Term.LATENCY].seconds_if_free == pytest.approx(2000 * MICRO)


def test_a_time_recorded_under_another_rule_is_scaled() -> None:
    now = launch(DRAM=100, L2=50)
    before = LaunchTerms("k", 2 * now.seconds, now.terms)
    assert seconds_with(before, Term.DRAM, 0.0) == pytest.approx(2 * seconds_with(now, Term.DRAM, 0.0))
    assert seconds_with(before, Term.DRAM, 1.0) == pytest.approx(before.seconds)


def test_launches_are_relieved_one_by_one_and_added_up() -> None:
    first, second = launch("a", DRAM=100, FMA=10), launch("b", FMA=100, DRAM=10)
    found = explain_launches((first, second))
    assert "Of the time a takes 50%, b takes 50%." in sentences(found)
    assert "Of the time" not in " ".join(sentences(explain_launches((first, first))))
    free = next(term.seconds_if_free for term in found.terms if term.name == Term.DRAM)
    assert free == pytest.approx(110 * MICRO)
    assert summed((first, second)) == pytest.approx({Term.DRAM: 110 * MICRO, Term.FMA: 110 * MICRO})


def test_sentences_carry_what_binds_what_is_next_and_what_if() -> None:
    found = explain_launches([launch(GLOBAL_WAVEFRONTS=300, ISSUE=150, LAUNCH=2)])
    binds, follows, relief = sentences(found)
    assert "bound by global wavefronts: 300 us alone" in binds
    assert f"{found.binding.share:.0%} of the time" in binds
    assert "Next is instruction issue: 150 us alone" in follows
    assert "With global wavefronts halved it would take" in relief
    assert f"with global wavefronts gone 152 us ({found.seconds / (152 * MICRO):.2f}x faster)" in relief


def test_a_kernel_of_one_term_has_no_next_one() -> None:
    binds, follows, relief = sentences(explain_launches([launch(DRAM=300, ISSUE=1)]))
    assert "bound by DRAM" in binds
    assert follows == "Nothing else explains more than 3% of it."
    assert "with DRAM gone 1 us" in relief
    assert len(sentences(explain_launches([launch(DRAM=300)]))) == 1


def test_the_doubt_is_about_the_term_that_weighs_most() -> None:
    found = explain_launches([launch(DRAM=300, ISSUE=100)])
    low, high = found.interval
    assert f"between {low / MICRO:.3g} us and {high / MICRO:.3g} us" in doubt(found)
    assert "about DRAM" in doubt(found)


def test_a_recorded_evaluation_needs_only_its_terms() -> None:
    recorded = launch(DRAM=100, L2=50)
    timing = Timing("n=1", recorded.seconds, recorded.seconds, recorded.seconds)
    known = Evaluation(Outcome.OK, Source.MODELLED, timings=(timing,), terms=recorded.terms)
    found = explain(known)
    assert found is not None
    assert found.seconds == recorded.seconds
    assert found.binding.name == Term.DRAM
    assert launches_of(known) == (LaunchTerms("", recorded.seconds, recorded.terms),)


def test_what_was_not_modelled_is_not_explained() -> None:
    timing = Timing("n=1", 1.0, 1.0, 1.0)
    assert explain(Evaluation(Outcome.OK, Source.MEASURED, timings=(timing,))) is None
    assert explain(Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, "no")) is None


def test_every_term_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Term)
