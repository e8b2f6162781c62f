"""Templates match code whatever its layout, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.edits.indexing import code
from mctskernel.edits.syntax import parse, text_of
from mctskernel.edits.templates import expression, match

TEMPLATE = """
float $total = 0.0f;
for (int $i = $first; $i < $count; $i += 32) {
    $total += $x[$i];
}
"""
CODE = """
float sum = 0.0f;
for (int j = threadIdx.x % 32; j < n; j += 32) {
    sum += x[j];
}
"""


def bound(text: str, template: str = TEMPLATE) -> dict[str, str] | None:
    functions = parse(f"void f() {{ {text} }}").functions
    found = match(template, code(functions[0].body)) if functions else None
    return {name: text_of(node) for name, node in found.items()} if found is not None else None


def test_names_stand_for_expressions() -> None:
    assert bound(CODE) == {"total": "sum", "i": "j", "first": "threadIdx.x % 32", "count": "n", "x": "x"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{\n    sum += x[j];\n}", "sum += x[j];"),
        ("sum += x[j];", "// adds\n sum += (x[(j)]); /* added */"),
        ("for", "#pragma unroll 4\nfor"),
        ("j < n", "(j) < (n)"),
    ],
)
def test_layout_makes_no_difference(old: str, new: str) -> None:
    assert bound(CODE.replace(old, new)) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[j]", "x[i]"),
        ("x[j]", "x[j + 1]"),
        ("sum +=", "total +="),
        ("j < n", "j <= n"),
        ("+= 32", "+= 31"),
        ("0.0f", "0.5f"),
        ("float", "double"),
        ("sum += x[j];", "sum += x[j]; sum += 1.0f;"),
        ("sum += x[j];", ""),
        ("\n}\n", "\n}\nsum = 1.0f;"),
    ],
)
def test_other_code_does_not_match(old: str, new: str) -> None:
    assert old in CODE
    assert bound(CODE.replace(old, new)) is None


@given(
    st.lists(st.sampled_from(["(", ")", "x", "+", "1", "[", "]", ";", "$", " "]), max_size=12).map("".join)
)
def test_any_text_matches_or_does_not(text: str) -> None:
    bound(f"{text};")


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="no expression"):
        expression("a b )")
