"""Definitions, their workloads and the files that these name, read and checked before their code runs.

A problem of SOL-ExecBench is DIR/definition.json with DIR/workload.jsonl; file names are relative to DIR. In a data set
of flashinfer-bench they are ROOT/definitions/**/NAME.json and ROOT/workloads/**/NAME.jsonl, relative to ROOT.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import read_bytes
from mctskernel.problems.definitions.definition import (
    FLASHINFER_BENCH,
    SOL_EXECBENCH,
    Axes,
    Custom,
    Definition,
    Random,
    Safetensors,
    Scalar,
    Workload,
)
from mctskernel.problems.definitions.reference import FULL_RANGE, WORKLOAD, input_tensors, output_tensors
from mctskernel.problems.problem import available_memory

DATA_VARIABLE = "FLASHINFER_TRACE_DIR"
"""Another folder of data files, as in SOL-ExecBench's harness."""


class WorkloadTrace(msgspec.Struct, frozen=True):
    """A workload as flashinfer-bench writes it: a trace without a solution."""

    definition: str
    workload: Workload


_TRACES = msgspec.json.Decoder(WorkloadTrace)
_WORKLOADS = msgspec.json.Decoder(Workload)


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
    """Read a file of workloads, one per line, as either benchmark writes them. Raises TaskError."""
    found = []
    for number, line in enumerate(read_bytes(file).split(b"\n"), 1):
        if line.strip():
            try:
                is_trace = "workload" in msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                found.append(_TRACES.decode(line).workload if is_trace else _WORKLOADS.decode(line))
            except UNDECODABLE as error:
                raise TaskError(f"{file}, line {number} is no workload: {excerpt(error)}.") from error
    if not found:
        raise TaskError(f"{file} holds no workload.")
    return tuple(found)


def _root_of(file: Path) -> Path | None:
    """The data set that a definition's file is in."""
    return next((each.parent for each in file.absolute().parents if each.name == "definitions"), None)


def check_definition(definition: Definition) -> None:
    """Raise TaskError for a definition that isn't supported."""
    if definition.op_type == "sampling":
        raise TaskError("Its outputs are drawn at random and checked by frequency, which isn't supported.")
    if all(spec.shape is None for spec in definition.inputs.values()):
        raise TaskError("It has no tensor among its inputs.")
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        if "float8" in spec.dtype or "float4" in spec.dtype:
            raise TaskError(
                f"'{name}' is {spec.dtype}: the reference is computed in 64-bit floats, too exact to verify it."
            )
        if spec.optional:
            raise TaskError(f"'{name}' is optional, which isn't supported.")
        if name in definition.outputs and spec.shape is None:
            raise TaskError(f"The output '{name}' is a Python number; a kernel writes tensors.")


def workload_shapes(
    definition: Definition, axes: Axes, workloads: tuple[Workload, ...]
) -> tuple[dict[str, int], ...]:
    """The shape of each workload, with a number where sizes are equal or inputs are files. Raises TaskError."""
    memory = available_memory()
    tensors = (*input_tensors(definition, axes), *output_tensors(definition, axes))
    shapes = []
    for workload in workloads:
        if unknown := [name for name in axes.dimensions if name not in workload.axes]:
            raise TaskError(f"The workload {workload.uuid} gives the axis '{unknown[0]}' no size.")
        _check_inputs(definition, workload)
        shape = {name: workload.axes[name] for name in axes.dimensions}
        shapes.append(shape)
        axes.values(shape)  # raises where an axis has no size
        memory.require(sum(each.nbytes(shape) for each in tensors), f"The workload {workload.uuid}")
    distinct = {tuple(shape.items()) for shape in shapes}
    if len(distinct) < len(shapes) or any(has_files(workload) for workload in workloads):
        if WORKLOAD in axes.extents:
            raise TaskError(
                f"It has an axis called '{WORKLOAD}', a name that is needed to number its workloads."
            )
        shapes = [{**shape, WORKLOAD: number} for number, shape in enumerate(shapes, 1)]
    return tuple(shapes)


def has_files(workload: Workload) -> bool:
    """Whether a workload has inputs from files."""
    return any(isinstance(source, Safetensors) for source in workload.inputs.values())


def fixed_scalars(workloads: tuple[Workload, ...]) -> dict[str, bool | int | float]:
    """The inputs that are numbers, which must be equal in all workloads. Raises TaskError."""
    found: dict[str, bool | int | float] = {}
    for workload in workloads:
        for name, source in workload.inputs.items():
            if isinstance(source, Scalar) and found.setdefault(name, source.value) != source.value:
                raise TaskError(
                    f"'{name}' is {found[name]:g} in one workload and {source.value:g} in another; it must be the same "
                    "everywhere: split the problem."
                )
    return found


def _check_inputs(definition: Definition, workload: Workload) -> None:
    where = f"In the workload {workload.uuid}"
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name, Random())
        if isinstance(source, Custom) and not definition.custom_inputs_entrypoint:
            raise TaskError(
                f"{where} '{name}' is custom, but the definition has no custom_inputs_entrypoint."
            )
        if spec.shape is None and not isinstance(source, Scalar | Custom):
            raise TaskError(f"{where} the input '{name}' has no value; in the definition it is a number.")
        if isinstance(source, Random) and "int" in spec.dtype and spec.dtype not in FULL_RANGE:
            raise TaskError(
                f"{where} '{name}' is random {spec.dtype} of an unknown range, which could be indices. Give the values "
                "in a safetensors file, or by custom_inputs_entrypoint."
            )
