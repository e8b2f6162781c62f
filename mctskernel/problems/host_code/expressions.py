"""Expressions of launch plans and task files as Python, dimensions as functions of shapes, and unused names.

They are written from the syntax tree that `mctskernel.core.expression` evaluates, so no unparsed text of a candidate
gets into a program. Functions refuse the divisions and shifts that `evaluate` refuses.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.expression import Number
from mctskernel.core.task import Tensor


class HostCodeError(ValueError):
    """A kernel for which no host code can be written."""


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
"""Python functions that translated expressions call."""

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
    """The variable of a name in the program, and whether it is an integer."""

    name: str
    is_whole: bool = True


@dataclass(frozen=True)
class Translation:
    """Python source, whether its value is always an integer, and the functions of `ARITHMETIC` that it calls."""

    source: str
    is_whole: bool
    calls: frozenset[str] = frozenset()


def translate(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> Translation:
    """An expression as Python; `functions` are the names of `ARITHMETIC` in the module. Raises HostCodeError."""
    if not isinstance(text, str):
        return Translation(ast.unparse(_number(text)), isinstance(text, int))
    try:
        node, is_whole, calls = _translated(ast.parse(text.strip(), mode="eval").body, variables, functions)
        return Translation(ast.unparse(node), is_whole, calls)
    except HostCodeError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise HostCodeError(f"'{text}' is not an expression.") from error


def translate_whole(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> Translation:
    """As `translate`, for an integer; the module checks what may not be one."""
    found = translate(text, variables, functions)
    if found.is_whole:
        return found
    source = f"{functions['whole']}({found.source})"
    return Translation(source, is_whole=True, calls=found.calls | {"whole"})


_Translated = tuple[ast.expr, bool, frozenset[str]]


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
        f"'{ast.unparse(node)}' can't be written as host code: it is not arithmetic over known names."
    )


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), list(arguments), [])


def _number(value: Number) -> ast.expr:
    if isinstance(value, float) and not math.isfinite(value):
        return _call("float", ast.Constant(str(value)))
    return ast.Constant(value)


@dataclass(frozen=True)
class Extent:
    """An extent of a tensor: an expression over the dimensions, at an axis."""

    tensor: str
    axis: int
    text: str | int


@dataclass(frozen=True)
class Solved:
    """A dimension as an expression over an extent, called `SIZE`, and other dimensions.

    `divides`, if set, is an expression that the extent must divide exactly, or else several dimensions would fit.
    """

    name: str
    extent: Extent
    expression: str
    divides: str = ""


SIZE = "__size__"
"""The name of an extent's size in expressions."""


def solve(tensors: Sequence[Tensor], dimensions: Iterable[str]) -> tuple[Solved, ...]:
    """The dimensions that can be computed from the shapes of tensors, each from earlier ones only.

    Extents that are a dimension come first; then those with one unknown dimension, which occurs once under additions,
    subtractions, multiplications, or as a divisor.
    """
    wanted = list(dict.fromkeys(dimensions))
    extents = [Extent(t.name, axis, text) for t in tensors for axis, text in enumerate(t.shape)]
    found: dict[str, Solved] = {}
    for extent in extents:
        if isinstance(extent.text, str) and (name := extent.text.strip()) in wanted and name not in found:
            found[name] = Solved(name, extent, SIZE)
    while len(found) < len(wanted):
        more = next((each for e in extents if (each := _solved(e, wanted, found)) is not None), None)
        if more is None:
            break
        found[more.name] = more
    return tuple(found.values())


def _solved(extent: Extent, wanted: Sequence[str], known: Mapping[str, Solved]) -> Solved | None:
    if not isinstance(extent.text, str):
        return None
    tree = ast.parse(extent.text.strip(), mode="eval").body
    unknown = [
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in wanted and n.id not in known
    ]
    if len(unknown) != 1:
        return None
    solution: ast.expr = ast.Name(SIZE)
    divides = ""
    while not isinstance(tree, ast.Name):
        step = _undone(tree, unknown[0], solution)
        if step is None or divides:
            return None
        tree, solution, divides = step
    return Solved(unknown[0], extent, ast.unparse(solution), divides)


def _undone(tree: ast.expr, unknown: str, value: ast.expr) -> tuple[ast.expr, ast.expr, str] | None:
    """Solve `tree == value` for one operand of the outermost operation: that operand, and its value."""
    match tree:
        case ast.BinOp(left=left, op=op, right=right):
            inner, other = (left, right) if _mentions(left, unknown) else (right, left)
        case _:
            return None
    match op:
        case ast.Add():
            return inner, ast.BinOp(value, ast.Sub(), other), ""
        case ast.Sub() if inner is left:
            return inner, ast.BinOp(value, ast.Add(), other), ""
        case ast.Sub():
            return inner, ast.BinOp(other, ast.Sub(), value), ""
        case ast.Mult():
            return inner, ast.BinOp(value, ast.FloorDiv(), other), ""
        case ast.Div() if inner is left:
            return inner, ast.BinOp(value, ast.Mult(), other), ""
        case ast.Div() | ast.FloorDiv() if inner is right:
            return inner, ast.BinOp(other, ast.FloorDiv(), value), ast.unparse(other)
    return None


def _mentions(tree: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


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
    literal = f"r'''{text}'''"
    return literal if _stands_for(literal, text) else repr(text)


def docstring(text: str) -> str:
    """A literal for a docstring."""
    literal = f'"""{text}"""'
    return literal if _stands_for(literal, text) else repr(text)


def _stands_for(literal: str, text: str) -> bool:
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return False
    try:
        return bool(ast.literal_eval(literal) == text)
    except (SyntaxError, ValueError):
        return False
