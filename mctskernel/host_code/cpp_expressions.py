"""Expressions of launch plans and task files as C++, in 64-bit integers: what `expressions` writes for Python.

Written from the syntax tree, as there: no text of a candidate gets into a program unparsed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.expression import Number
from mctskernel.host_code.errors import HostCodeError

NAMESPACE = "mctskernel_host"

CPP_ARITHMETIC = """\
namespace mctskernel_host {

int64_t floor_div(int64_t a, int64_t b) {
    TORCH_CHECK_VALUE(b != 0, "A size is divided by zero.");
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t modulo(int64_t a, int64_t b) {
    return a - floor_div(a, b) * b;
}

int64_t exact_div(int64_t a, int64_t b) {
    TORCH_CHECK_VALUE(b != 0 && a % b == 0, a, " / ", b, " is not a whole number.");
    return a / b;
}

int64_t ceil_div(int64_t a, int64_t b) {
    return -floor_div(-a, b);
}

int64_t next_pow2(int64_t a) {
    int64_t power = 1;
    while (power < a && power > 0) {
        power *= 2;
    }
    return power;
}

int64_t shift_left(int64_t a, int64_t b) {
    TORCH_CHECK_VALUE(b >= 0 && b < 63, a, " << ", b, " is out of range.");
    return a * (int64_t(1) << b);
}

int64_t shift_right(int64_t a, int64_t b) {
    TORCH_CHECK_VALUE(b >= 0 && b < 63, a, " >> ", b, " is out of range.");
    return a >> b;
}

int64_t min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int64_t max(int64_t a, int64_t b) {
    return a < b ? b : a;
}

int64_t abs(int64_t a) {
    return a < 0 ? -a : a;
}

}  // namespace mctskernel_host
"""
"""What translated expressions call."""

_SYMBOLS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_CALLED: Mapping[type[ast.operator], str] = {
    ast.FloorDiv: "floor_div",
    ast.Mod: "modulo",
    ast.Div: "exact_div",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_FUNCTIONS = {"min": 2, "max": 2, "abs": 1, "ceil_div": 2, "next_pow2": 1}


@dataclass(frozen=True)
class CppVariable:
    """What a name of an expression is called in the program; a number that isn't whole is a `double`."""

    name: str
    is_whole: bool = True


def cpp_whole(text: str | Number, variables: Mapping[str, CppVariable]) -> str:
    """An expression of whole numbers as C++. Raises HostCodeError."""
    if isinstance(text, float):
        if not text.is_integer():
            raise HostCodeError(f"{text} is not a whole number.")
        text = int(text)
    if isinstance(text, int):
        return _constant(text)
    try:
        return _whole(ast.parse(text.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, HostCodeError):
            raise
        raise HostCodeError(f"'{text}' is not an expression.") from error


def cpp_number(text: str | Number, variables: Mapping[str, CppVariable]) -> tuple[str, bool]:
    """As `cpp_whole`, or a number of the task's that isn't whole, as it stands; and whether it is whole."""
    if isinstance(text, float):
        return _real(text), False
    if isinstance(text, str) and (known := variables.get(text.strip())) is not None and not known.is_whole:
        return known.name, False
    return cpp_whole(text, variables), True


def _whole(node: ast.expr, variables: Mapping[str, CppVariable]) -> str:
    def inner(operand: ast.expr) -> str:
        return _whole(operand, variables)

    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return _constant(value)
        case ast.Name(id=name) if name in variables and variables[name].is_whole:
            return variables[name].name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{inner(operand)})"
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _SYMBOLS:
            return f"({inner(left)} {_SYMBOLS[type(op)]} {inner(right)})"
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _CALLED:
            return f"{NAMESPACE}::{_CALLED[type(op)]}({inner(left)}, {inner(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return f"int64_t({inner(left)} {_COMPARISONS[type(op)]} {inner(right)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"({inner(test)} != 0 ? {inner(body)} : {inner(orelse)})"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if _FUNCTIONS.get(name) == len(
            arguments
        ):
            return f"{NAMESPACE}::{name}({', '.join(map(inner, arguments))})"
    raise HostCodeError(
        f"'{ast.unparse(node)}' can't be written in C++: it is no arithmetic of whole numbers."
    )


def _constant(value: int) -> str:
    if abs(value) >= 1 << 63:
        raise HostCodeError(f"A number of {value.bit_length()} bits exceeds 64 bits.")
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"


def _real(value: float) -> str:
    if not math.isfinite(value):
        raise HostCodeError(f"{value} can't be written as a number in C++.")
    return repr(value)
