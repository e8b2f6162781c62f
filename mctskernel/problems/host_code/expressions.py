"""Expressions of launch plans and task files as Python, and unused names.

They are written from the syntax tree that `mctskernel.core.expression` evaluates, so no unparsed text of a candidate
gets into a program.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
from collections.abc import Iterable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from mctskernel.core.expression import Number

TEMPLATES = Environment(
    loader=PackageLoader("mctskernel.problems.host_code"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 - programs, not HTML
)
"""The templates of programs, in C++ and in Python."""


class HostCodeError(ValueError):
    """A kernel for which no host code can be written."""


_TEXT = TEMPLATES.get_template("functions.txt").render()
FUNCTIONS: Mapping[str, str] = {
    each.name: f"{ast.unparse(each)}\n" for each in ast.parse(_TEXT).body if isinstance(each, ast.FunctionDef)
}
"""Python functions that translated expressions call."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_CALLABLE = {"min": "min", "max": "max", "abs": "abs", "ceil_div": "_ceil_div", "next_pow2": "_next_pow2"}


def translate(text: str | Number, names: Mapping[str, str]) -> str:
    """An expression as Python over other names. Raises HostCodeError."""
    if not isinstance(text, str):
        return ast.unparse(_number(text))
    try:
        return ast.unparse(_translated(ast.parse(text.strip(), mode="eval").body, names))
    except HostCodeError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise HostCodeError(f"'{text}' is not an expression.") from error


def translate_whole(text: str | int, names: Mapping[str, str]) -> str:
    """As `translate`, for a value that must be an integer, and is one at the shapes of the task."""
    found = translate(text, names)
    return found if found.isidentifier() or found.isdecimal() else f"int({found})"


def _translated(node: ast.expr, names: Mapping[str, str]) -> ast.expr:
    def inner(*operands: ast.expr) -> list[ast.expr]:
        return [_translated(each, names) for each in operands]

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _number(value)
        case ast.Name(id=name) if name in names:
            return ast.Name(names[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ast.UnaryOp(ast.USub(), *inner(operand))
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OPERATORS):
            one, other = inner(left, right)
            return ast.BinOp(one, op, other)
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return _call("_exact_div", *inner(left, right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
            one, other = inner(left, right)
            return _call("int", ast.Compare(one, [op], [other]))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(*inner(test, body, orelse))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLABLE:
            return _call(_CALLABLE[name], *inner(*arguments))
    raise HostCodeError(
        f"'{ast.unparse(node)}' can't be written as host code: it is not arithmetic over known names."
    )


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), list(arguments), [])


def _number(value: Number) -> ast.expr:
    if isinstance(value, float) and not math.isfinite(value):
        return _call("float", ast.Constant(str(value)))
    return ast.Constant(value)


_NEVER = frozenset({*keyword.kwlist, *dir(builtins)})


class Names:
    """The names that are taken in a scope, including Python's own."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_NEVER, *taken}

    def fresh(self, wanted: str) -> str:
        """Take a name, with underscores appended if it is taken already."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted


def raw_literal(text: str) -> str:
    """A literal for a text: a raw string over several lines where possible, else an escaped one."""
    return _literal(text, f"r'''{text}'''")


def docstring(text: str) -> str:
    return _literal(text, f'"""{text}"""')


def _literal(text: str, wanted: str) -> str:
    try:
        stands = bool(ast.literal_eval(wanted) == text)
    except (SyntaxError, ValueError):
        stands = False
    return wanted if stands and text.replace("\n", "").replace("\t", "").isprintable() else repr(text)
