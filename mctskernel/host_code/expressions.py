"""Expressions of launch plans and task files as Python's.

What `mctskernel.core.expression` evaluates, written from its syntax tree: no text of a candidate gets into a module
unparsed. Divisions and shifts that Python would carry out and we refuse are calls of functions that refuse them too.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.expression import Number
from mctskernel.host_code.errors import HostCodeError

ARITHMETIC: Mapping[str, str] = {
    "ceil_div": """\
def {name}(a, b):
    return -(-a // b)
""",
    "next_pow2": """\
def {name}(a):
    return 1 << max(0, int(a) - 1).bit_length()
""",
    "exact_div": """\
def {name}(a, b):
    if isinstance(a, int) and isinstance(b, int):
        quotient, rest = divmod(a, b)
        if rest:
            raise ValueError(f"{{a}} / {{b}} is not a whole number.")
        return quotient
    return a / b
""",
    "shift_left": """\
def {name}(a, b):
    if not (isinstance(a, int) and isinstance(b, int) and 0 <= b < 63):
        raise ValueError(f"{{a}} << {{b}} is out of range.")
    return a << b
""",
    "shift_right": """\
def {name}(a, b):
    if not (isinstance(a, int) and isinstance(b, int) and 0 <= b < 63):
        raise ValueError(f"{{a}} >> {{b}} is out of range.")
    return a >> b
""",
    "whole": """\
def {name}(value):
    if value != int(value):
        raise ValueError(f"{{value}} is not a whole number.")
    return int(value)
""",
}
"""Functions that translated expressions call, by name: what Python has no operator for, or a laxer one."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_CALLED_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Div: "exact_div",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
}
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_BUILT_IN = frozenset({"min", "max", "abs"})
_OWN = frozenset({"ceil_div", "next_pow2"})


@dataclass(frozen=True)
class Variable:
    """What a name of an expression is called in the module, and whether its value is a whole number."""

    name: str
    is_whole: bool = True


@dataclass(frozen=True)
class Translation:
    """Python source, whether its value is a whole number wherever it has one, and which `ARITHMETIC` it calls."""

    source: str
    is_whole: bool
    calls: frozenset[str] = frozenset()


def translate(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> Translation:
    """An expression that may be evaluated, as Python source; `functions` are what `ARITHMETIC` is called there.

    Raises HostCodeError.
    """
    return _written(_translator(text, variables, functions))


def translate_whole(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> Translation:
    """As `translate`, for what must be a whole number: what may not be is put to the test in the module."""
    node, is_whole, calls = _translator(text, variables, functions)
    if is_whole:
        return _written((node, is_whole, calls))
    return _written((_call(functions["whole"], node), True, calls | {"whole"}))


_Translated = tuple[ast.expr, bool, frozenset[str]]


def _written(translated: _Translated) -> Translation:
    node, is_whole, calls = translated
    try:
        return Translation(ast.unparse(node), is_whole, calls)
    except RecursionError as error:
        raise HostCodeError("An expression is nested too deeply to be written.") from error


def _translator(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> _Translated:
    if not isinstance(text, str):
        return _number(text), isinstance(text, int), frozenset()
    try:
        return _translated(ast.parse(text.strip(), mode="eval").body, variables, functions)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, HostCodeError):
            raise
        raise HostCodeError(f"'{text}' is not an expression.") from error


def _translated(
    node: ast.expr, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> _Translated:
    def inner(operand: ast.expr) -> _Translated:
        return _translated(operand, variables, functions)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _number(value), isinstance(value, int), frozenset()
        case ast.Name(id=name) if name in variables:
            known = variables[name]
            return ast.Name(known.name), known.is_whole, frozenset()
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            negated, is_whole, calls = inner(operand)
            return ast.UnaryOp(ast.USub(), negated), is_whole, calls
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OPERATORS):
            (one, one_whole, some), (other, other_whole, more) = inner(left), inner(right)
            return ast.BinOp(one, op, other), one_whole and other_whole, some | more
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _CALLED_OPERATORS:
            called = _CALLED_OPERATORS[type(op)]
            (one, one_whole, some), (other, other_whole, more) = inner(left), inner(right)
            return _call(functions[called], one, other), one_whole and other_whole, some | more | {called}
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
            (one, _, some), (other, _, more) = inner(left), inner(right)
            return _call("int", ast.Compare(one, [op], [other])), True, some | more
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = inner(test), inner(body), inner(orelse)
            calls = frozenset().union(*(each[2] for each in parts))
            return ast.IfExp(*(each[0] for each in parts)), parts[1][1] and parts[2][1], calls
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _BUILT_IN | _OWN:
            given = [inner(argument) for argument in arguments]
            calls = frozenset({name} & _OWN).union(*(each[2] for each in given))
            is_whole = name == "next_pow2" or all(each[1] for each in given)
            return _call(functions.get(name, name), *(each[0] for each in given)), is_whole, calls
    raise HostCodeError(
        f"'{ast.unparse(node)}' can't be written as host code: it is no arithmetic over known names."
    )


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), list(arguments), [])


def _number(value: Number) -> ast.expr:
    if isinstance(value, float) and not math.isfinite(value):
        return _call("float", ast.Constant(str(value)))
    return ast.Constant(value)
