"""Definitions and workloads as flashinfer-bench and SOL-ExecBench write them, and the axes of their tensors.

Sources: docs/flashinfer-trace of https://github.com/flashinfer-ai/flashinfer-bench; docs/definition.md,
docs/workload.md and src/sol_execbench of https://github.com/NVIDIA/SOL-ExecBench.

A problem of SOL-ExecBench is DIR/definition.json with DIR/workload.jsonl; file names are relative to DIR. In a data set
of flashinfer-bench they are ROOT/definitions/**/NAME.json and ROOT/workloads/**/NAME.jsonl, relative to ROOT.

Types are strict. Unknown fields are ignored in `Definition`, `Workload` and `Allowed`, where they never change a
result, and refused elsewhere.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.expression import MAX_LENGTH, ExpressionError, evaluate, evaluate_int, names_in
from mctskernel.core.task import Shape, TaskError
from mctskernel.core.task_file import read_bytes

FLASHINFER_BENCH = "flashinfer-bench"
SOL_EXECBENCH = "SOL-ExecBench"
DATA_VARIABLE = "FLASHINFER_TRACE_DIR"  # another folder of data files, as in SOL-ExecBench's harness

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


class _Tagged(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=True):
    """What says in its `type` which of several it is."""


class Const(_Tagged, frozen=True):
    """An axis of the same size in every workload."""

    value: Size
    description: Text = None


class Var(_Tagged, frozen=True):
    """An axis whose size a workload gives. `parent` is of an older form, and ignored."""

    description: Text = None
    parent: Text = None


class Expr(_Tagged, frozen=True):
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


class Random(_Tagged, frozen=True):
    """A tensor drawn by the harness: floats from a normal distribution."""


class Scalar(_Tagged, frozen=True):
    """A number."""

    value: bool | int | float


class Safetensors(_Tagged, frozen=True):
    """A tensor in a file; the path is relative to the root of the data set."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    tensor_key: Name


class Custom(_Tagged, frozen=True):
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

    @property
    def most(self) -> float:
        return math.inf if self.max_error_cap is None else self.max_error_cap


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sizes and inputs of an evaluation. `correctness` is the old name of `tolerance`."""

    uuid: Name
    axes: dict[Name, Size]
    inputs: dict[Name, Random | Scalar | Safetensors | Custom]
    tolerance: Allowed | None = None
    correctness: Allowed | None = None

    @property
    def allowed(self) -> Allowed:
        return self.tolerance or self.correctness or Allowed()

    @property
    def has_files(self) -> bool:
        return any(isinstance(source, Safetensors) for source in self.inputs.values())


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


@dataclass(frozen=True)
class Found:
    """A definition with its workloads, and the folders that their file names are relative to."""

    benchmark: str
    definition: Definition
    workloads: tuple[Workload, ...]
    roots: tuple[Path, ...]

    def file(self, path: str) -> Path:
        """A file that a workload names. Raises TaskError for one that is missing or outside of the folders."""
        for root in self.roots:
            home, file = root.resolve(), (root / path).resolve()
            if Path(path).is_absolute() or not file.is_relative_to(home):
                raise TaskError(f"A workload names {path!r}, which leads out of {root}.")
            if file.is_file():
                return file
        where = " and ".join(str(root) for root in self.roots)
        raise TaskError(
            f"A workload names {path!r}, which isn't in {where} (set {DATA_VARIABLE} to where it is)."
        )


def is_definition(path: Path, benchmark: str) -> bool:
    """Whether a path holds a problem of this benchmark, by file names only."""
    if path.is_dir():
        if (path / "definition.json").is_file():
            return benchmark == SOL_EXECBENCH
        return benchmark == FLASHINFER_BENCH and (path / "definitions").is_dir()
    if path.suffix != ".json" or not path.is_file():
        return False
    if path.name == "definition.json":
        return benchmark == SOL_EXECBENCH
    return benchmark == FLASHINFER_BENCH and _root_of(path) is not None


def find_definition(path: Path) -> Found:
    """The definition at a path: a folder, or the definition's own file. Raises TaskError."""
    if path.is_dir() and not (path / "definition.json").is_file():
        files = sorted((path / "definitions").rglob("*.json"))
        first = ", ".join(map(str, files[:3]))
        raise TaskError(
            f"{path} holds {len(files)} definitions: name the file of one{f', as {first}' if files else ''}."
        )
    file = path / "definition.json" if path.is_dir() else path
    try:
        definition = msgspec.json.decode(read_bytes(file), type=Definition)
    except UNDECODABLE as error:
        raise TaskError(f"{file} is no definition: {excerpt(error)}.") from error
    root = _root_of(file) if file.name != "definition.json" else None
    if root is not None:
        # A name with separators or wildcards can't be looked for.
        plain = definition.name.replace("-", "_").replace(".", "_").isidentifier()
        named = sorted((root / "workloads").rglob(f"{definition.name}.jsonl")) if plain else []
        workloads = named[0] if named else root / "workloads" / f"{definition.name}.jsonl"
        return Found(FLASHINFER_BENCH, definition, read_workloads(workloads), (root,))
    elsewhere = os.environ.get(DATA_VARIABLE)
    roots = (file.parent, *([Path(elsewhere)] if elsewhere else []))
    return Found(SOL_EXECBENCH, definition, read_workloads(file.with_name("workload.jsonl")), roots)


def read_workloads(file: Path) -> tuple[Workload, ...]:
    """Read a file of workloads, one per line; flashinfer-bench has each in a trace. Raises TaskError."""
    found = []
    for number, line in enumerate(read_bytes(file).split(b"\n"), 1):
        if line.strip():
            try:
                fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                found.append(msgspec.json.decode(fields.get("workload", line), type=Workload))
            except UNDECODABLE as error:
                raise TaskError(f"{file}, line {number} is no workload: {excerpt(error)}.") from error
    if not found:
        raise TaskError(f"{file} holds no workload.")
    return tuple(found)


def _root_of(file: Path) -> Path | None:
    """The data set that a definition's file is in."""
    return next((each.parent for each in file.absolute().parents if each.name == "definitions"), None)
