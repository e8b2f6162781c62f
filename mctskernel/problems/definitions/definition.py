"""Definitions and workloads as flashinfer-bench and SOL-ExecBench write them, and the axes of their tensors.

Sources: docs/flashinfer-trace of https://github.com/flashinfer-ai/flashinfer-bench; docs/definition.md,
docs/workload.md and src/sol_execbench of https://github.com/NVIDIA/SOL-ExecBench.

Types are strict. Unknown fields are ignored in `Definition`, `Workload` and `Allowed`, where they never change a
result, and refused elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from mctskernel.core.expression import MAX_LENGTH, ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.task import Shape, TaskError

FLASHINFER_BENCH = "flashinfer-bench"
SOL_EXECBENCH = "SOL-ExecBench"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*\Z", max_length=200)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]
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
    axes: dict[Identifier, Const | Var | Expr]
    inputs: dict[Identifier, Spec]
    outputs: Annotated[dict[Identifier, Spec], msgspec.Meta(min_length=1)]
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

    def allow(self, definition: Definition, shape: Shape) -> bool:
        """Whether all constraints depend on sizes alone and hold at a shape."""
        try:
            return all(
                evaluate(_over_dimensions(text, self.extents), shape) for text in definition.constraints or ()
            )
        except ExpressionError:
            return False


def read_axes(definition: Definition) -> Axes:
    """The axes of a definition; one may be computed from those before it. Raises TaskError."""
    extents: dict[str, int | str] = {}
    for name, axis in sorted(definition.axes.items(), key=lambda item: isinstance(item[1], Expr)):
        match axis:
            case Const(value=value):
                extents[name] = value
            case Var():
                extents[name] = name
            case Expr(expression=text):
                written = _over_dimensions(text, extents)
                try:
                    extents[name] = written if names_in(written) else evaluate_int(written, {})
                except ExpressionError as error:
                    raise TaskError(f"The axis '{name}': {error}") from error
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        for each in spec.shape or ():
            if not each.isdecimal() and each not in extents:
                raise TaskError(f"The shape of '{name}' has the axis {each!r}, which isn't among the axes.")
    dimensions = tuple(name for name, axis in definition.axes.items() if isinstance(axis, Var))
    return Axes(dimensions, {name: extents[name] for name in definition.axes})


def _over_dimensions(text: str, extents: Mapping[str, int | str]) -> str:
    """An expression over axes as one over dimensions; one that is too long for `evaluate` is cut, and refused there."""

    def extent(match: re.Match[str]) -> str:
        found = str(extents.get(match[0], match[0]))
        return found if re.fullmatch(r"\w+", found) else f"({found})"

    return re.sub(r"[A-Za-z_]\w*", extent, text[: MAX_LENGTH + 1])
