"""Index polynomials agree with the arithmetic that they stand for."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tree_sitter import Node

from mctskernel.edits.affine import Polynomial, definitions, polynomial
from mctskernel.edits.syntax import parse, walk

NAMES = ("a", "b", "c", "n")
LEAVES = st.one_of(st.sampled_from(NAMES), st.integers(0, 50).map(str))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


def expression(text: str) -> Node:
    declaration = next(walk(parse(f"void f() {{ int r = {text}; }}").root, "init_declarator"))
    value = declaration.child_by_field_name("value")
    assert value is not None
    return value


def evaluated(text: str, values: Mapping[str, int]) -> int:
    return int(eval(text, {"__builtins__": {}}, dict(values)))  # noqa: S307 (the test's own text)


@given(EXPRESSIONS, st.fixed_dictionaries({name: st.integers(-9, 9) for name in NAMES}))
@example("((a * (a * a)) + a)", {"a": 2, "b": 0, "c": 0, "n": 0})  # the grammar sees a cast of +a
@example("((a * (b)) - c)", {"a": 2, "b": 3, "c": 5, "n": 0})
@example("((a * (b * c)) * (n))", {"a": 2, "b": 3, "c": 5, "n": 7})
def test_a_polynomial_has_the_value_of_its_expression(text: str, values: dict[str, int]) -> None:
    assert polynomial(expression(text)).at(values).constant == evaluated(text, values)


def indices(code: str) -> dict[str, Polynomial]:
    """The index of each array in the body of `f`."""
    function = parse(f"__global__ void f(float* x, float* y, int n) {{ {code} }}").functions[0]
    known = definitions(function)
    return {access.array: polynomial(access.indices[0], known) for access in function.accesses}


def test_definitions_are_looked_through() -> None:
    found = indices("int t = threadIdx.x; const int i = blockIdx.x * 64 + t; x[i * n + 1] = 0;")
    assert str(found["x"]) == "1 + 64*blockIdx.x*n + n*threadIdx.x"


@pytest.mark.parametrize(
    "code",
    ["int i = threadIdx.x; i += 1; x[i] = 0;", "int i = threadIdx.x; { int i = 2; y[i] = 0; } x[i] = 0;"],
)
def test_names_that_change_or_hide_each_other_are_not_looked_through(code: str) -> None:
    assert "threadIdx.x" not in indices(code)["x"].names
