"""An explanation's numbers: shares, what-ifs and the interval follow from the terms, and its sentences carry them."""

import pytest

from mctskernel.core.evaluation import LaunchTerms
from mctskernel.profiling.model.explanation import explain_launches, sentences, summed
from mctskernel.profiling.model.price import Term, combined

MICRO = 1e-6


def launch(kernel: str = "k", **microseconds: float) -> LaunchTerms:
    terms = {Term[name].value: value * MICRO for name, value in microseconds.items()}
    return LaunchTerms(kernel, combined(terms), terms)


def test_launches_are_relieved_one_by_one_and_added_up() -> None:
    first, second = launch("a", DRAM=100, FMA=10), launch("b", FMA=100, DRAM=10)
    found = explain_launches((first, second))
    assert "Of the time a takes 50%, b takes 50%." in sentences(found)
    assert "Of the time" not in " ".join(sentences(explain_launches((first, first))))
    free = next(term.seconds_if_free for term in found.terms if term.name == Term.DRAM)
    assert free == pytest.approx(110 * MICRO)
    assert summed((first, second)) == pytest.approx({Term.DRAM: 110 * MICRO, Term.FMA: 110 * MICRO})
