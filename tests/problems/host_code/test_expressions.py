"""Translated expressions against the evaluator of launch plans."""

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mctskernel.core.expression import ExpressionError, evaluate
from mctskernel.problems.host_code.expressions import FUNCTIONS, HostCodeError, translate

OPERATORS = ("+", "-", "*", "/", "//", "%", "<<", ">>", "<", "<=", "==", "!=")
NAMES = {"rows": "rows_", "n": "n_", "eps": "eps_"}


def value_of(source: str, values: dict[str, float]) -> object:
    known: dict[str, object] = {NAMES[name]: value for name, value in values.items()}
    exec("".join(FUNCTIONS.values()), known)  # noqa: S102 - our own text
    return eval(source, known)  # noqa: S307 - what is tested


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(OPERATORS), inner)
    return (
        binary.map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})")
        | inner.map(lambda text: f"-{text}")
        | st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        )
        | inner.map(lambda text: f"next_pow2({text})")
        | inner.map(lambda text: f"abs({text})")
        | st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})")
    )


leaves = (
    st.sampled_from(["rows", "n", "eps"]) | st.integers(0, 40).map(str) | st.sampled_from(["0.5", "1e-3"])
)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(leaves, grown, max_leaves=6),
    st.fixed_dictionaries({"rows": st.integers(1, 5000), "n": st.integers(1, 64), "eps": st.just(0.25)}),
)
def test_a_translation_has_the_value_that_the_plan_has(text: str, values: dict[str, float]) -> None:
    try:
        expected = evaluate(text, values)
    except ExpressionError:
        reject()  # The module is written after the plan was resolved at the task's shapes.
    assert value_of(translate(text, NAMES), values) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "rows.real",
        "print(1)",
        "lambda: 1",
        "unknown",
        "1 if True else 2",
        "f'{n}'",
        "min(*rows)",
        "min(rows, key=n)",
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(HostCodeError):
        translate(text, NAMES)
