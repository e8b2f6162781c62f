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
_CALLABLE = frozenset({"min", "max", "abs", "ceil_div", "next_pow2"})


@dataclass(frozen=True)
class Variable:
    """The variable of a name in the program, and whether it is an integer."""

    name: str
    is_whole: bool = True


@dataclass(frozen=True)
class Translation:
    """Python source, and whether its value is always an integer."""

    source: str
    is_whole: bool


def translate(
    text: str | Number, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> Translation:
    """An expression as Python; `functions` are the names of `ARITHMETIC` in the module. Raises HostCodeError."""
    if not isinstance(text, str):
        return Translation(ast.unparse(_number(text)), isinstance(text, int))
    try:
        node, is_whole = _translated(ast.parse(text.strip(), mode="eval").body, variables, functions)
        return Translation(ast.unparse(node), is_whole)
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
    return Translation(f"{functions['whole']}({found.source})", is_whole=True)


def _translated(
    node: ast.expr, variables: Mapping[str, Variable], functions: Mapping[str, str]
) -> tuple[ast.expr, bool]:
    """An expression in Python, and whether it is always an integer."""

    def inner(*operands: ast.expr) -> tuple[list[ast.expr], bool]:
        found = [_translated(each, variables, functions) for each in operands]
        return [each for each, _ in found], all(is_whole for _, is_whole in found)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _number(value), isinstance(value, int)
        case ast.Name(id=name) if name in variables:
            return ast.Name(variables[name].name), variables[name].is_whole
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            parts, is_whole = inner(operand)
            return ast.UnaryOp(ast.USub(), *parts), is_whole
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OPERATORS):
            (one, other), is_whole = inner(left, right)
            return ast.BinOp(one, op, other), is_whole
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _CALLED_OPERATORS:
            parts, is_whole = inner(left, right)
            return _call(functions[_CALLED_OPERATORS[type(op)]], *parts), is_whole
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
            (one, other), _ = inner(left, right)
            return _call("int", ast.Compare(one, [op], [other])), True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            (condition,), _ = inner(test)
            parts, is_whole = inner(body, orelse)
            return ast.IfExp(condition, *parts), is_whole
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLABLE:
            parts, is_whole = inner(*arguments)
            return _call(functions.get(name, name), *parts), is_whole or name == "next_pow2"
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
    if not isinstance(tree, ast.BinOp):
        return None
    is_left = any(isinstance(node, ast.Name) and node.id == unknown for node in ast.walk(tree.left))
    inner, other = (tree.left, tree.right) if is_left else (tree.right, tree.left)
    match tree.op:
        case ast.Add():
            return inner, ast.BinOp(value, ast.Sub(), other), ""
        case ast.Sub() if is_left:
            return inner, ast.BinOp(value, ast.Add(), other), ""
        case ast.Sub():
            return inner, ast.BinOp(other, ast.Sub(), value), ""
        case ast.Mult():
            return inner, ast.BinOp(value, ast.FloorDiv(), other), ""
        case ast.Div() if is_left:
            return inner, ast.BinOp(value, ast.Mult(), other), ""
        case ast.Div() | ast.FloorDiv() if not is_left:
            return inner, ast.BinOp(other, ast.FloorDiv(), value), ast.unparse(other)
    return None


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
    """A literal for a docstring."""
    return _literal(text, f'"""{text}"""')


def _literal(text: str, wanted: str) -> str:
    try:
        stands = bool(ast.literal_eval(wanted) == text)
    except (SyntaxError, ValueError):
        stands = False
    return wanted if stands and text.replace("\n", "").replace("\t", "").isprintable() else repr(text)
