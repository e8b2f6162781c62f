"""Sizes by which dimensions are recognised, and the expressions that numbers become."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.expression import evaluate_int
from mctskernel.problems.inductor.sizes import Names, distinct_sizes

SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(2, 40_000), min_size=1)
GRAINS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from((1, 2, 4, 64)))


@given(SIZES, GRAINS, st.integers(1, 64), st.data())
def test_a_product_of_dimensions_is_found_again(
    sizes: dict[str, int], grains: dict[str, int], factor: int, data: st.DataObject
) -> None:
    distinct = distinct_sizes(sizes, grains)
    chosen = data.draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=2, unique=True))
    number = factor
    for name in chosen:
        number *= distinct[name]
    expression = Names(distinct, grains).expression(number)
    assert expression is not None
    assert evaluate_int(expression, distinct) == number
    # At other sizes it is the product of those.
    others = {name: grains.get(name, 1) * (position + 2) for position, name in enumerate(distinct)}
    if all(factor % prime for prime in (distinct[n] // grains.get(n, 1) for n in distinct)):
        expected = factor
        for name in chosen:
            expected *= others[name]
        assert evaluate_int(expression, others) == expected
