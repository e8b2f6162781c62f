"""Integer arithmetic in launch plans, macros and task files, evaluated without `eval`.

Expressions come from candidate kernels, so they are hostile input: the text is parsed into Python's syntax
tree, only the node kinds named below are walked, and sizes are bounded.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from mctskernel.core.user_errors import nearest_name

MAX_LENGTH = 1000
MAX_MAGNITUDE = 1 << 63

Number = int | float


class ExpressionError(ValueError):
    """An expression that can't be evaluated; the message is a sentence that quotes it."""


def evaluate(text: str | Number, names: Mapping[str, Number]) -> Number:
    """The value of an arithmetic expression over `names`.

    Operators: + - * / // % << >>, unary minus, comparisons (1 or 0), `a if c else b`; `/` of two integers
    divides exactly or raises. Functions: min, max, abs, ceil_div, next_pow2.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ExpressionError(f"{text!r} is neither a number nor an expression.")
    if not isinstance(text, str):
        if isinstance(text, int) and abs(text) >= MAX_MAGNITUDE:
            raise ExpressionError(f"A number of {text.bit_length()} bits exceeds 64 bits.")
        return text
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"An expression of {len(text)} characters is over the limit of {MAX_LENGTH}.")
    try:
        read = _names(text)
        if all(name in names for name in read):
            return _computed(text, *[names[name] for name in read])
        return _value(parse(text).body, names, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, ExpressionError):
            raise
        reason = "divides by zero" if isinstance(error, ZeroDivisionError) else "is not an expression"
        raise ExpressionError(f"'{text}' {reason}.") from error


def evaluate_int(text: str | Number, names: Mapping[str, Number]) -> int:
    """As `evaluate`, for a result that must be a whole number."""
    value = evaluate(text, names)
    if isinstance(value, float):
        if not value.is_integer():
            raise ExpressionError(f"'{text}' is {value}, not a whole number.")
        if abs(value) >= MAX_MAGNITUDE:
            raise ExpressionError(f"'{text}' exceeds 64 bits.")
        return int(value)
    return value


def names_in(text: str | Number) -> frozenset[str]:
    """The names that an expression reads; empty when it doesn't parse."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        return frozenset()
    try:
        return frozenset(_names(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    nodes = list(ast.walk(parse(text)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return tuple(
        dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)
    )


@lru_cache(maxsize=1 << 14, typed=True)
def _computed(text: str, *values: Number) -> Number:
    """The value, remembered: a plan is resolved for many edits, each of which changes few of its expressions."""
    return _value(parse(text).body, dict(zip(_names(text), values, strict=True)), text)


@lru_cache(maxsize=1024)
def parse(text: str) -> ast.Expression:
    """The tree of an expression, remembered: it must not be changed. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about odd spellings such as `1if n else 2`
        return ast.parse(text.strip(), mode="eval")


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        quotient, rest = divmod(a, b)
        if rest:
            raise ExpressionError(f"{a} / {b} is not a whole number; use // or ceil_div.")
        return quotient
    return a / b


def _shift(a: Number, b: Number, sign: str) -> int:
    if not (isinstance(a, int) and isinstance(b, int) and 0 <= b < 63):
        raise ExpressionError(f"{a} {sign} {b} is out of range.")
    return a << b if sign == "<<" else a >> b


def _ceil_div(a: Number, b: Number) -> Number:
    return -(-a // b)


def _next_pow2(a: Number) -> Number:
    return 1 << max(0, int(a) - 1).bit_length()


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: partial(_shift, sign="<<"),
    ast.RShift: partial(_shift, sign=">>"),
}
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., Number]]] = {
    "min": (2, min),
    "max": (2, max),
    "abs": (1, abs),
    "ceil_div": (2, _ceil_div),
    "next_pow2": (1, _next_pow2),
}


def _value(node: ast.expr, names: Mapping[str, Number], text: str) -> Number:
    value = _walk(node, names, text)
    if not abs(value) < MAX_MAGNITUDE:
        raise ExpressionError(f"'{text}' exceeds 64 bits.")
    return value


def _walk(node: ast.expr, names: Mapping[str, Number], text: str) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            if name not in names:
                meant = f"did you mean '{close}'? " if (close := nearest_name(name, names)) else ""
                known = ", ".join(sorted(names)) or "none"
                raise ExpressionError(f"'{text}' uses the unknown name '{name}' ({meant}known: {known}).")
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names, text)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names, text), _value(right, names, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return int(_COMPARE[type(op)](_value(left, names, text), _value(right, names, text)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names, text) else orelse, names, text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            count, function = _FUNCTIONS[name]
            if len(arguments) != count:
                raise ExpressionError(f"'{text}': {name} takes {count} argument(s), not {len(arguments)}.")
            return function(*(_value(argument, names, text) for argument in arguments))
    raise ExpressionError(f"'{text}' holds something other than integer arithmetic ({type(node).__name__}).")
