"""Axes of a definition as dimensions of a task: constants are numbers, expressions become ours, nothing is evaluated.

An expression is hostile text: it is parsed, its syntax tree is walked, and what is written out again holds nothing but
arithmetic over the axes that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.expression import ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.task import Shape, TaskError
from mctskernel.problems.definitions.schema import Const, Definition, Expr, Spec, Var

MOST_POWER = 8
"""Exponents are small numbers; a power is written as a product."""

MOST_CHARACTERS = 500
"""Of an expression, as it is given and with what it is computed from written out."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Axes:
    """The dimensions that workloads give sizes to, and each axis as a number or an expression over them."""

    dimensions: tuple[str, ...]
    extents: Mapping[str, int | str]

    def of(self, spec: Spec) -> tuple[int | str, ...]:
        """The extents of a tensor."""
        return tuple(int(name) if name.isdecimal() else self.extents[name] for name in spec.shape or ())

    def values(self, shape: Shape) -> dict[str, int]:
        """The size of every axis at a shape. Raises TaskError."""
        try:
            return {name: evaluate_int(extent, shape) for name, extent in self.extents.items()}
        except ExpressionError as error:
            raise TaskError(str(error)) from error


def read_axes(definition: Definition) -> Axes:
    """The axes of a definition. Raises TaskError."""
    extents: dict[str, int | str] = {}
    for name in definition.axes:
        if not name.isidentifier():
            raise TaskError(f"The axis {name!r} has no name that an expression could use.")
        _resolve(definition, name, extents, ())
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        for axis in spec.shape or ():
            if not axis.isdecimal() and axis not in extents:
                raise TaskError(f"The shape of '{name}' has the axis {axis!r}, which isn't among the axes.")
    dimensions = tuple(name for name, axis in definition.axes.items() if isinstance(axis, Var))
    return Axes(dimensions, {name: extents[name] for name in definition.axes})


def constraint_holds(text: str, axes: Axes, shape: Shape) -> bool | None:
    """Whether a constraint holds at a shape; None where it asks about more than sizes, as of a tensor's values."""
    try:
        node = _parsed(text, "A constraint")
        if not (
            isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _COMPARISONS)
        ):
            return None
        sign = _SIGNS[type(node.ops[0])]
        left, right = (
            _written(each, axes.extents, "A constraint") for each in (node.left, node.comparators[0])
        )
        return bool(evaluate(f"{left} {sign} {right}", shape))
    except (TaskError, ExpressionError):
        return None


_SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _resolve(definition: Definition, name: str, known: dict[str, int | str], above: tuple[str, ...]) -> None:
    """Put an axis, and those that it is computed from, among the known ones: a number, or over dimensions."""
    if name in known:
        return
    if name in above:
        raise TaskError(f"The axis '{name}' is computed from itself.")
    match definition.axes[name]:
        case Const(value=value):
            known[name] = value
        case Var():
            known[name] = name
        case Expr(expression=text):
            what = f"The axis '{name}'"
            node = _parsed(text, what)
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & definition.axes.keys()
            for each in sorted(used):
                _resolve(definition, each, known, (*above, name))
            written = _written(node, known, what)
            if len(written) > MOST_CHARACTERS:
                raise TaskError(f"{what} is computed from more than {MOST_CHARACTERS} characters tell.")
            known[name] = written if names_in(written) else _number(written, what)


def _number(text: str, what: str) -> int:
    try:
        return evaluate_int(text, {})
    except ExpressionError as error:
        raise TaskError(f"{what}: {error}") from error


def _parsed(text: str, what: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:
        raise TaskError(
            f"{what} has an expression of {len(text)} characters; at most {MOST_CHARACTERS} are read."
        )
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{what} has {text!r}, which is no expression.") from error


def _written(node: ast.expr, axes: Mapping[str, int | str], what: str) -> str:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and 0 <= value < 1 << 48:
            return str(value)
        case ast.Name(id=name) if name in axes:
            extent = axes[name]
            return extent if isinstance(extent, str) and extent.isidentifier() else f"({extent})"
        case ast.Name(id=name):
            raise TaskError(f"{what} is computed from {name!r}, which isn't among the axes.")
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _written(operand, axes, what)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{_written(operand, axes, what)})"
        case ast.BinOp(op=ast.Pow(), left=ast.Name() as left, right=ast.Constant(value=int(power))) if (
            not isinstance(power, bool) and 1 <= power <= MOST_POWER
        ):
            return "(" + " * ".join([_written(left, axes, what)] * power) + ")"
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OPERATORS):
            return f"({_written(left, axes, what)} {_SYMBOLS[type(op)]} {_written(right, axes, what)})"
    raise TaskError(
        f"{what} has {ast.unparse(node)[:MOST_CHARACTERS]!r}, which is no arithmetic over axes "
        f"(+ - * / // %, and an axis to a power up to {MOST_POWER})."
    )


_SYMBOLS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
