"""Definitions and workloads as flashinfer-bench and SOL-ExecBench write them: one schema but for a few fields.

Sources: docs/flashinfer-trace of https://github.com/flashinfer-ai/flashinfer-bench; docs/definition.md,
docs/workload.md and src/sol_execbench of https://github.com/NVIDIA/SOL-ExecBench.

Types are strict. Fields that aren't known are passed over in `Definition`, `Workload` and `Allowed`, which have grown
and say nothing by them that changes a result; in all others they are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

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
    """An axis that every workload has the same value of."""

    value: Size
    description: Text = None


class Var(msgspec.Struct, frozen=True, tag_field="type", tag="var", forbid_unknown_fields=True):
    """An axis that a workload gives a value to. `parent` is of an older form, and says nothing of its size."""

    description: Text = None
    parent: Text = None


class Expr(msgspec.Struct, frozen=True, tag_field="type", tag="expr", forbid_unknown_fields=True):
    """An axis computed from others; SOL-ExecBench's."""

    expression: str
    description: Text = None


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output; without a shape it is a number of Python's."""

    shape: tuple[Name, ...] | None
    dtype: DType
    description: Text = None
    optional: bool = False


class Definition(msgspec.Struct, frozen=True):
    """What is computed: `run(...)` in the text of `reference`, called with the inputs in their order."""

    name: Name
    axes: dict[Name, Const | Var | Expr]
    inputs: dict[Name, Spec]
    outputs: dict[Name, Spec]
    reference: str
    op_type: Text = None
    description: Text = None
    constraints: tuple[str, ...] | None = None
    custom_inputs_entrypoint: Text = None


class Random(msgspec.Struct, frozen=True, tag_field="type", tag="random", forbid_unknown_fields=True):
    """Drawn by the harness: floats from a normal distribution."""


class Scalar(msgspec.Struct, frozen=True, tag_field="type", tag="scalar", forbid_unknown_fields=True):
    """A number."""

    value: bool | int | float


class Safetensors(
    msgspec.Struct, frozen=True, tag_field="type", tag="safetensors", forbid_unknown_fields=True
):
    """A tensor in a file; the path begins at the root of the data set."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    tensor_key: Name


class Custom(msgspec.Struct, frozen=True, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """Made by the definition's own function; SOL-ExecBench's."""


class Allowed(msgspec.Struct, frozen=True):
    """How far outputs may be off at a workload of SOL-ExecBench; its defaults are those of flashinfer-bench too.

    An element is within where `|out - ref| <= max_atol + max_rtol |ref|`, and so must be a share of all; none may be
    off by more than `max_error_cap`.
    """

    max_atol: Allowance = 1e-2
    max_rtol: Allowance = 1e-2
    required_matched_ratio: Share = 1.0
    max_error_cap: Allowance | None = None


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sizes and inputs that a solution is judged at. `correctness` is what `tolerance` was called before."""

    uuid: Name
    axes: dict[Name, Size]
    inputs: dict[Name, Random | Scalar | Safetensors | Custom]
    tolerance: Allowed | None = None
    correctness: Allowed | None = None

    @property
    def allowed(self) -> Allowed:
        """How far outputs may be off."""
        return self.tolerance or self.correctness or Allowed()
