"""Expressions come from candidates: they compute what Python would, or refuse with a sentence."""

import warnings

import pytest

from mctskernel.core.expression import ExpressionError, Number, evaluate, names_in

NAMES: dict[str, Number] = {"rows": 8192, "cols": 4096, "BLOCK": 256, "half": 0.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil_div(rows + 1, BLOCK)", 33),
        ("min(rows, cols) + max(1, 2) + abs(-3)", 4101),
        ("next_pow2(cols + 1)", 8192),
        ("1 << 10 >> 2", 256),
        ("cols if cols < rows else rows", 4096),
        ("(rows == 8192) + (rows != 8192)", 1),
        ("-" * 99 + "1", -1),
        ("(" * 99 + "1" + ")" * 99, 1),
        ("+".join(["1"] * 250), 250),
        ("0x10+0b1+0o7", 24),
    ],
)
def test_arithmetic(text: str | Number, value: Number) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 99",
        "rows * rows * rows * rows * rows * rows",
        "1 << 63",
        "1 << -1",
        "next_pow2(9223372036854775807)",
        "'a' * 99",
        "f'{rows}'",
        "(lambda: 1)()",
        "rows.__class__",
        "().__class__.__bases__[0].__subclasses__()",
        "__import__('os').system('true')",
        "min(*rows)",
        "",
        "\0",
        "(" * 250 + "1" + ")" * 250,
        "1 / 0",
        "ceil_div(1, 0)",
        "unknown + 1",
        "\ud800",
        1 << 63,
        10**400,
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str | int) -> None:
    with pytest.raises(ExpressionError, match=r"\.$"):
        evaluate(text, NAMES)


@pytest.mark.parametrize("text", ["1+" * 500_000 + "1", "(" * 1_000_000, "-" * 1_000_000])
def test_a_long_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(ExpressionError, match="over the limit"):
        evaluate(text, NAMES)
    assert names_in(text) == frozenset()
