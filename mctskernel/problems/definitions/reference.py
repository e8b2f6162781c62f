"""The functions that reference.py of a task calls: the definition's `run` on arrays, and the inputs of its workloads.

PyTorch is imported when they are called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.documents import excerpt
from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array, Shape, TaskError, Tensor
from mctskernel.problems.definitions.definition import (
    Axes,
    Definition,
    Safetensors,
    Spec,
    Workload,
    read_axes,
)
from mctskernel.problems.problem import blamed, read_record
from mctskernel.problems.torch_reference import array_of, find_function, in_numpy, listed_results

RUN_FILE = "run.py"  # the definition's reference in a task's folder
WORKLOAD = "workload"  # the dimension that numbers workloads of equal sizes, from 1; 0 is none of them

FULL_RANGE = {"int8": (-128, 127), "bool": (0, 1)}
"""The range of integers that are no indices, as harnesses draw them."""


class DefinitionProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `PROBLEM_FILE`. `shapes` are in the order of `workloads`, `given` the
    files that these name: in the task's folder, or where they are if they are too large to copy.
    """

    benchmark: str
    name: str
    definition: Definition
    workloads: tuple[Workload, ...]
    shapes: tuple[dict[str, int], ...]
    scalars: dict[str, bool | int | float] = {}
    given: dict[str, str] = {}


@functools.lru_cache
def read_definition_problem(folder: Path) -> DefinitionProblem:
    """The problem of a task's folder. Raises TaskError."""
    return read_record(folder, DefinitionProblem)


def call_reference(folder: Path, *inputs: Array) -> Array | tuple[Array, ...]:
    """Call the reference, in the precision of its inputs. Raises TaskError."""
    problem = read_definition_problem(folder)
    return in_numpy(definition_function(problem, find_function(str(folder / RUN_FILE), "run")), *inputs)


def definition_function(problem: DefinitionProblem, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` as a function of the tensor inputs, which returns a tuple of outputs, or the only one."""
    definition = problem.definition
    given = [spec for spec in definition.inputs.values() if spec.shape is not None]

    def function(*tensors: Any) -> Any:
        left = (
            tensor.reshape(()) if each.shape == () else tensor
            for each, tensor in zip(given, tensors, strict=True)
        )
        arguments = [
            problem.scalars[name] if spec.shape is None else next(left)
            for name, spec in definition.inputs.items()
        ]
        outputs = _outputs(definition, run(*arguments))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return function


def make_problem_inputs(folder: Path, rng: np.random.Generator, /, **shape: int) -> dict[str, Array]:
    """Fresh inputs at a shape, those of its workload if it has one. Raises TaskError."""
    problem = read_definition_problem(folder)
    definition, axes = problem.definition, read_axes(problem.definition)
    if definition.custom_inputs_entrypoint:
        entry = find_function(str(folder / RUN_FILE), definition.custom_inputs_entrypoint)
        made = custom_values(definition, axes, entry, shape, int(rng.integers(1 << 62)))
        name = definition.custom_inputs_entrypoint
        return {
            each.name: _checked(made[each.name], each, shape, name)
            for each in task_tensors(definition.inputs, axes)
        }
    workload = problem.workloads[max(shape.get(WORKLOAD, 0), 1) - 1]
    found = {}
    for tensor in task_tensors(definition.inputs, axes):
        source = workload.inputs.get(tensor.name)
        if not isinstance(source, Safetensors):
            found[tensor.name] = tensor.draw(shape, rng)
            continue
        tensors = stored_tensors(folder / problem.given[source.path])
        if source.tensor_key not in tensors:
            raise TaskError(f"{source.path} has no tensor {source.tensor_key!r}.")
        found[tensor.name] = _checked(tensors[source.tensor_key], tensor, shape, source.path)
    return found


def custom_values(
    definition: Definition, axes: Axes, entry: Callable[..., Any], shape: Shape, seed: int
) -> Mapping[str, Any]:
    """The inputs that the definition's own function makes on the CPU. Raises TaskError."""
    import torch  # noqa: PLC0415 - PyTorch is an extra

    name = definition.custom_inputs_entrypoint
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with blamed(f"{name} raised"):
            made = entry(axes.values(shape), torch.device("cpu"))
    if not isinstance(made, Mapping) or not definition.inputs.keys() <= made.keys():
        raise TaskError(f"{name} must return a dictionary with every input.")
    return made


def task_tensors(specs: Mapping[str, Spec], axes: Axes) -> tuple[Tensor, ...]:
    """Those inputs or outputs that are tensors."""
    return tuple(_task_tensor(name, spec, axes) for name, spec in specs.items() if spec.shape is not None)


def _task_tensor(name: str, spec: Spec, axes: Axes) -> Tensor:
    """An input or output as a tensor of the task, with at least one extent."""
    dtype, extents = spec.dtype, axes.of(spec) or (1,)
    if dtype in FULL_RANGE:
        low, high = FULL_RANGE[dtype]
        return Tensor(name, dtype, extents, "integers", low, high)
    return Tensor(name, dtype, extents, "normal" if "float" in dtype else "integers")


@functools.lru_cache(maxsize=4)
def stored_tensors(file: Path) -> Mapping[str, Array]:
    """Read a safetensors file. Raises TaskError."""
    try:
        from safetensors import SafetensorError  # noqa: PLC0415 - an extra
        from safetensors.torch import load_file  # noqa: PLC0415 - as above
    except ImportError as error:
        raise TaskError(
            "This problem's inputs are safetensors files, which need another package: "
            "pip install 'mctskernel[benchmarks]'."
        ) from error
    try:
        return {name: array_of(tensor) for name, tensor in load_file(file).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise TaskError(f"{file} can't be read: {excerpt(error)}.") from error


def _checked(value: Any, tensor: Tensor, shape: Shape, what: str) -> Array:
    array = value if isinstance(value, np.ndarray) else array_of(value)
    expected = tensor.extents(shape)
    if array.dtype != numpy_dtype(tensor.dtype) or array.shape != expected:
        raise TaskError(
            f"{what} gives '{tensor.name}' as {array.dtype} {array.shape}; the definition says {tensor.dtype} "
            f"{expected}."
        )
    return array


def _outputs(definition: Definition, result: object) -> Sequence[Any]:
    """The results of `run` in the order of the outputs. Raises TaskError."""
    import torch  # noqa: PLC0415 - an extra

    names = list(definition.outputs)
    found = listed_results([*map(result.get, names)] if isinstance(result, Mapping) else result)
    if len(found) != len(names) or not all(isinstance(each, torch.Tensor) for each in found):
        given = ", ".join(type(each).__name__ for each in found)
        raise TaskError(f"run returns {given}; the definition's outputs are the tensors {', '.join(names)}.")
    return found
