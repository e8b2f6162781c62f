"""What of definitions and workloads can become a task; what can't is said in a sentence, before anything is run."""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterator, Mapping

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Shape, TaskError, shape_label
from mctskernel.problems.definitions.axes import Axes, constraint_holds
from mctskernel.problems.definitions.reference import FULL_RANGE, WORKLOAD, input_tensors, task_tensor
from mctskernel.problems.definitions.schema import (
    Custom,
    Definition,
    Random,
    Safetensors,
    Scalar,
    Spec,
    Workload,
)
from mctskernel.problems.device_memory import Memory, available_memory

MOST_REFERENCE = 1 << 20
"""Characters of a reference."""


def check_definition(definition: Definition) -> None:
    """Raise TaskError for a definition that no task can be made of."""
    if definition.op_type == "sampling":
        raise TaskError(
            "Its outputs are drawn at random: they are judged by how often each comes, and a task's by their values."
        )
    names = [*definition.inputs, *definition.outputs]
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name) or name == WORKLOAD:
            raise TaskError(f"'{name}' can't be the name of an input or output.")
        if name in definition.axes:
            raise TaskError(f"'{name}' is an axis and a tensor; names must differ.")
    both = definition.inputs.keys() & definition.outputs.keys()
    if both:
        raise TaskError(f"'{min(both)}' is an input and an output; names must differ.")
    if not definition.outputs:
        raise TaskError("It has no output.")
    if all(spec.shape is None for spec in definition.inputs.values()):
        raise TaskError("It has no tensor among its inputs.")
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        _check_spec(name, spec, output=name in definition.outputs)
    _check_reference(definition)


def workload_shapes(
    definition: Definition, axes: Axes, workloads: tuple[Workload, ...]
) -> tuple[dict[str, int], ...]:
    """The shape of each workload, with a number where sizes alone don't tell them apart. Raises TaskError."""
    memory = available_memory()
    shapes = [_sizes(axes, workload) for workload in workloads]
    for shape, workload in zip(shapes, workloads, strict=True):
        _check_inputs(definition, workload)
        _check_extents(definition, axes, shape, workload, memory)
    distinct = {tuple(shape.items()) for shape in shapes}
    if len(distinct) < len(shapes) or any(has_files(workload) for workload in workloads):
        if WORKLOAD in axes.extents:
            raise TaskError(f"It has an axis called '{WORKLOAD}', which is what tells its workloads apart.")
        shapes = [{**shape, WORKLOAD: number} for number, shape in enumerate(shapes, 1)]
    return tuple(shapes)


def has_files(workload: Workload) -> bool:
    """Whether it has inputs from files."""
    return any(isinstance(source, Safetensors) for source in workload.inputs.values())


def unchecked_constraints(definition: Definition, axes: Axes, shape: Shape) -> Iterator[str]:
    """Constraints that sizes alone don't tell of."""
    for text in definition.constraints or ():
        if constraint_holds(text, axes, shape) is None:
            yield text


def allows(definition: Definition, axes: Axes, shape: Shape) -> bool:
    """Whether all constraints are known to hold at a shape."""
    return all(constraint_holds(text, axes, shape) for text in definition.constraints or ())


def fixed_scalars(workloads: tuple[Workload, ...]) -> dict[str, bool | int | float]:
    """The inputs that are numbers, which must be the same in every workload that gives them. Raises TaskError."""
    found: dict[str, bool | int | float] = {}
    for workload in workloads:
        for name, source in workload.inputs.items():
            if isinstance(source, Scalar) and found.setdefault(name, source.value) != source.value:
                raise TaskError(
                    f"'{name}' is {found[name]:g} in one workload and {source.value:g} in another; a task's scalars "
                    "are the same everywhere: make a problem of each."
                )
    return found


def _check_spec(name: str, spec: Spec, *, output: bool) -> None:
    if "float8" in spec.dtype or "float4" in spec.dtype:
        raise TaskError(
            f"'{name}' is {spec.dtype}: what is right is computed in 64-bit floats, in which nothing is rounded to so "
            "few bits, so that a definition that quantises can't be told right from wrong."
        )
    if spec.optional:
        raise TaskError(f"'{name}' is optional; a task has the same inputs at every shape.")
    if output and spec.shape is None:
        raise TaskError(f"The output '{name}' is a number of Python's; a kernel writes tensors.")


def _check_reference(definition: Definition) -> None:
    if len(definition.reference) > MOST_REFERENCE:
        raise TaskError(
            f"Its reference has {len(definition.reference)} characters; at most {MOST_REFERENCE} are read."
        )
    try:
        functions = {
            node.name: node.args
            for node in ast.parse(definition.reference).body
            if isinstance(node, ast.FunctionDef)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"Its reference is no Python: {error}") from error
    for name in ("run", definition.custom_inputs_entrypoint):
        if name and name not in functions:
            raise TaskError(f"Its reference defines no function called '{name}'.")
    taken = [each.arg for each in (*functions["run"].posonlyargs, *functions["run"].args)]
    if taken != list(definition.inputs):
        raise TaskError(f"run takes {', '.join(taken)}; the inputs are {', '.join(definition.inputs)}.")


def _sizes(axes: Axes, workload: Workload) -> dict[str, int]:
    missing = [name for name in axes.dimensions if name not in workload.axes]
    if missing:
        raise TaskError(f"The workload {workload.uuid} gives the axis '{missing[0]}' no size.")
    strange = sorted(workload.axes.keys() - axes.extents.keys())
    if strange:
        raise TaskError(
            f"The workload {workload.uuid} has the axis '{strange[0]}', which the definition hasn't."
        )
    return {name: workload.axes[name] for name in axes.dimensions}


def _check_inputs(definition: Definition, workload: Workload) -> None:
    where = f"In the workload {workload.uuid}"
    strange = sorted(workload.inputs.keys() - definition.inputs.keys())
    if strange:
        raise TaskError(f"{where} is the input '{strange[0]}', which the definition hasn't.")
    kinds: Mapping[str, object] = {name: workload.inputs.get(name, Random()) for name in definition.inputs}
    custom = [name for name, source in kinds.items() if isinstance(source, Custom)]
    if definition.custom_inputs_entrypoint and len(custom) < len(kinds):
        raise TaskError(
            f"{where} some inputs are made by {definition.custom_inputs_entrypoint} and others aren't."
        )
    if custom and not definition.custom_inputs_entrypoint:
        raise TaskError(
            f"{where} '{custom[0]}' is custom, but the definition has no custom_inputs_entrypoint."
        )
    for name, source in kinds.items():
        spec = definition.inputs[name]
        if isinstance(source, Scalar) != (spec.shape is None) and not custom:
            what = "a number" if spec.shape is None else "a tensor"
            raise TaskError(
                f"{where} the input '{name}' is of the wrong kind; the definition says that it is {what}."
            )
        if isinstance(source, Random) and "int" in spec.dtype and spec.dtype not in FULL_RANGE:
            raise TaskError(
                f"{where} '{name}' is random {spec.dtype}, and nothing says of which range: as indices or lengths such "
                "numbers would lead anywhere. Give them in a file of safetensors, or by custom_inputs_entrypoint."
            )


def _check_extents(
    definition: Definition, axes: Axes, shape: Shape, workload: Workload, memory: Memory
) -> None:
    values = axes.values(shape)
    for name, size in workload.axes.items():
        if values[name] != size:
            raise TaskError(
                f"In the workload {workload.uuid} {name} is {size}; the definition makes it {values[name]}."
            )
    tensors = [
        *input_tensors(definition, axes),
        *(task_tensor(name, spec, axes) for name, spec in definition.outputs.items()),
    ]
    for tensor in tensors:
        if any(extent < 1 for extent in tensor.extents(shape)):
            raise TaskError(
                f"In the workload {workload.uuid} '{tensor.name}' has the shape {tensor.extents(shape)}; every extent "
                "must be at least 1."
            )
    for text in definition.constraints or ():
        if constraint_holds(text, axes, shape) is False:
            raise TaskError(
                f"The workload {workload.uuid} breaks a constraint at {shape_label(shape)}: {text}"
            )
    # Not by numpy, whose products wrap around.
    needed = sum(_nbytes(tensor.extents(shape), tensor.dtype) for tensor in tensors)
    memory.require(needed, f"The workload {workload.uuid}")


def _nbytes(extents: tuple[int, ...], dtype: str) -> int:
    return math.prod(extents) * DTYPE_BYTES[dtype]
