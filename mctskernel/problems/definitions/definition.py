"""Definitions and workloads as flashinfer-bench and SOL-ExecBench write them, and the axes of their tensors.

Sources: docs/flashinfer-trace of https://github.com/flashinfer-ai/flashinfer-bench; docs/definition.md,
docs/workload.md and src/sol_execbench of https://github.com/NVIDIA/SOL-ExecBench.

Types are strict. Unknown fields are ignored in `Definition`, `Workload` and `Allowed`, where they never change a
result, and refused elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal, cast

import msgspec

from mctskernel.core.expression import ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.task import Shape, TaskError

FLASHINFER_BENCH = "flashinfer-bench"
SOL_EXECBENCH = "SOL-ExecBench"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Allowance = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = str | None

DType = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1",
    "float4_e2m1fn_x2",
    "int64",
    "int32",
    "int16",
    "int8",
    "bool",
]


class Const(msgspec.Struct, frozen=True, tag_field="type", tag="const", forbid_unknown_fields=True):
    """An axis of the same size in every workload."""

    value: Size
    description: Text = None


class Var(msgspec.Struct, frozen=True, tag_field="type", tag="var", forbid_unknown_fields=True):
    """An axis whose size a workload gives. `parent` is of an older form, and ignored."""

    description: Text = None
    parent: Text = None


class Expr(msgspec.Struct, frozen=True, tag_field="type", tag="expr", forbid_unknown_fields=True):
    """An axis computed from others (SOL-ExecBench)."""

    expression: str
    description: Text = None


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output; without a shape it is a Python number."""

    shape: tuple[Name, ...] | None
    dtype: DType
    description: Text = None
    optional: bool = False


class Definition(msgspec.Struct, frozen=True):
    """A computation: `run(...)` in the text of `reference`, called with the inputs in order."""

    name: Name
    axes: dict[Name, Const | Var | Expr]
    inputs: dict[Name, Spec]
    outputs: Annotated[dict[Name, Spec], msgspec.Meta(min_length=1)]
    reference: str
    op_type: Text = None
    description: Text = None
    constraints: tuple[str, ...] | None = None
    custom_inputs_entrypoint: Text = None


class Random(msgspec.Struct, frozen=True, tag_field="type", tag="random", forbid_unknown_fields=True):
    """A tensor drawn by the harness: floats from a normal distribution."""


class Scalar(msgspec.Struct, frozen=True, tag_field="type", tag="scalar", forbid_unknown_fields=True):
    """A number."""

    value: bool | int | float


class Safetensors(
    msgspec.Struct, frozen=True, tag_field="type", tag="safetensors", forbid_unknown_fields=True
):
    """A tensor in a file; the path is relative to the root of the data set."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    tensor_key: Name


class Custom(msgspec.Struct, frozen=True, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """A tensor made by the definition's own function (SOL-ExecBench)."""


class Allowed(msgspec.Struct, frozen=True):
    """The tolerance at a workload of SOL-ExecBench; its defaults are those of flashinfer-bench too.

    A share of all elements must have `|out - ref| <= max_atol + max_rtol |ref|`, and none may be off by more than
    `max_error_cap`.
    """

    max_atol: Allowance = 1e-2
    max_rtol: Allowance = 1e-2
    required_matched_ratio: Share = 1.0
    max_error_cap: Allowance | None = None


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sizes and inputs of an evaluation. `correctness` is the old name of `tolerance`."""

    uuid: Name
    axes: dict[Name, Size]
    inputs: dict[Name, Random | Scalar | Safetensors | Custom]
    tolerance: Allowed | None = None
    correctness: Allowed | None = None

    @property
    def allowed(self) -> Allowed:
        """The tolerance."""
        return self.tolerance or self.correctness or Allowed()


MOST_POWER = 8
"""Exponents are small; a power is written as a product."""

MOST_CHARACTERS = 500
"""The longest expression, before and after axes are substituted."""

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True)
class Axes:
    """The dimensions, whose sizes workloads give, and each axis as a number or an expression over them."""

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
    """Whether a constraint holds at a shape; None where it isn't a comparison of two expressions over axes."""
    try:
        node = _parsed(text, "A constraint")
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return None
        substitution = _Substitution(axes.extents, "A constraint")
        node.left, node.comparators[0] = map(substitution.visit, (node.left, node.comparators[0]))
        return bool(evaluate(ast.unparse(node), shape))
    except (TaskError, ExpressionError):
        return None


def _resolve(definition: Definition, name: str, known: dict[str, int | str], above: tuple[str, ...]) -> None:
    """Add an axis, and those that it is computed from, to the known ones."""
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
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            for each in sorted(used & definition.axes.keys()):
                _resolve(definition, each, known, (*above, name))
            written = ast.unparse(_Substitution(known, what).visit(node))
            if len(written) > MOST_CHARACTERS:
                raise TaskError(f"{what} expands to an expression of more than {MOST_CHARACTERS} characters.")
            try:
                known[name] = written if names_in(written) else evaluate_int(written, {})
            except ExpressionError as error:
                raise TaskError(f"{what}: {error}") from error


def _parsed(text: str, what: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:
        raise TaskError(f"{what} has an expression of more than {MOST_CHARACTERS} characters.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{what} has {text!r}, which is no expression.") from error


class _Substitution(ast.NodeTransformer):
    """Replaces axes by their extents and small powers by products. Raises TaskError for anything but arithmetic."""

    def __init__(self, extents: Mapping[str, int | str], what: str) -> None:
        self._extents, self._what = extents, what

    def visit(self, node: ast.AST) -> ast.expr:
        """The replacement of an expression."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool) and 0 <= value < 1 << 48:
                return node
            case ast.Name(id=name) if name in self._extents:
                return ast.parse(str(self._extents[name]), mode="eval").body
            case ast.Name(id=name):
                raise TaskError(f"{self._what} is computed from {name!r}, which isn't among the axes.")
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.visit(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ast.UnaryOp(ast.USub(), self.visit(operand))
            case ast.BinOp(op=ast.Pow(), left=ast.Name() as base, right=ast.Constant(value=int(power))) if (
                not isinstance(power, bool) and 1 <= power <= MOST_POWER
            ):
                factors = [self.visit(base)] * power
                return reduce(lambda left, right: ast.BinOp(left, ast.Mult(), right), factors)
            case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _ARITHMETIC):
                return ast.BinOp(self.visit(left), op, self.visit(right))
        raise TaskError(
            f"{self._what} has {ast.unparse(cast('ast.expr', node))[:MOST_CHARACTERS]!r}, which is no arithmetic over "
            f"axes (+ - * / // %, and an axis to a power up to {MOST_POWER})."
        )
