"""What the reference.py of a task that was made of GPU MODE's runs: its `generate_input` and its `ref_kernel`.

PyTorch is imported when one of them is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Array, Shape, TaskError
from mctskernel.problems.gpu_mode.structure import Leaf, Structure, leaves, places, rebuilt
from mctskernel.problems.problem import read_record
from mctskernel.torch_reference import in_numpy

if TYPE_CHECKING:
    from mctskernel.problems.gpu_mode.program import Program

BESIDE = "problem_{name}.py"
"""What a module of the problem is called in the task's folder."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of the problem's data: an input, or room for an output."""

    dtype: str
    shape: tuple[int | str, ...]


class GpuModeProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `PROBLEM_FILE` says of a GPU MODE task.

    `modules` are its modules' names. `cases` are the arguments of its tests and then its benchmarks, which the
    dimension `case` numbers. `inputs` and `buffers` are tensors by the names of inputs and outputs. `scalars` are those
    of them without extents in PyTorch, which have one of 1 in the task.
    """

    benchmark: str
    name: str
    modules: tuple[str, ...]
    cases: tuple[dict[str, bool | int | float | str], ...]
    case: str
    structure: Structure
    inputs: dict[str, Kept]
    buffers: dict[str, Kept]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...]


def read_gpu_mode_problem(folder: Path) -> GpuModeProblem:
    """What a task's folder says of its problem. Raises TaskError."""
    return read_record(folder, GpuModeProblem)


def call_reference(folder: Path, shape: Shape, inputs: Mapping[str, Array]) -> Array | tuple[Array, ...]:
    """What `ref_kernel` gives for inputs by name, in the precision of what comes in. Raises TaskError."""
    problem, program = _loaded(folder)
    return in_numpy(reference_function(problem, program, shape, tuple(inputs)), *inputs.values())


def reference_function(
    problem: GpuModeProblem, program: Program, shape: Shape, names: tuple[str, ...]
) -> Callable[..., Any]:
    """`ref_kernel` as a function of the tensors that are the task's inputs, in the order of `names`."""
    import torch  # noqa: PLC0415 - as said above

    def function(*tensors: Any) -> Any:
        given = dict(zip(names, tensors, strict=True))
        sizes = {**shape, **_told(problem, given)}
        device = next(iter(given.values())).device

        def value(leaf: Leaf) -> Any:
            if leaf.input:
                tensor = given[leaf.input]
                return tensor.reshape(()) if leaf.input in problem.scalars else tensor
            if leaf.buffer:
                buffer = problem.buffers[leaf.buffer]
                extents = [
                    sizes[each] if each in sizes else evaluate_int(each, sizes) for each in buffer.shape
                ]
                return torch.zeros(extents, dtype=getattr(torch, buffer.dtype), device=device)
            return sizes[leaf.dimension] if leaf.dimension else leaf.value

        found = program.reference(rebuilt(problem.structure, value))
        outputs = [each.reshape(1) if each.dim() == 0 else each for _, each in leaves(found)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return function


def _told(problem: GpuModeProblem, given: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions that tensors have as extents: the tensors may be of other sizes than the case has them."""
    return {
        extent: given[name].shape[axis]
        for name, kept in problem.inputs.items()
        if name in given
        for axis, extent in enumerate(kept.shape)
        if isinstance(extent, str) and extent.isidentifier()
    }


def make_case_inputs(folder: Path, rng: np.random.Generator, shape: Shape) -> dict[str, Array]:
    """Fresh inputs of a case, as `generate_input` makes them from a seed of ours. Raises TaskError."""
    from mctskernel.problems.gpu_mode.program import MOST_SEED  # noqa: PLC0415 - imports PyTorch

    problem, program = _loaded(folder)
    data = program.generate(problem.cases[shape[problem.case]], int(rng.integers(MOST_SEED)))
    return input_arrays(problem, data)


def input_arrays(problem: GpuModeProblem, data: object) -> dict[str, Array]:
    """The task's inputs, of what `generate_input` made."""
    made = dict(leaves(data))
    return {
        leaf.input: _array(made[path], problem.inputs[leaf.input].dtype, leaf.input in problem.scalars)
        for path, leaf in places(problem.structure)
        if leaf.input
    }


def _array(tensor: Any, dtype: str, is_scalar: bool) -> Array:  # noqa: FBT001 - as the task has it
    tensor = tensor.detach().reshape(1) if is_scalar else tensor.detach()
    narrow = dtype in {"bfloat16", "float16"}
    array: Array = (tensor.float() if narrow else tensor).contiguous().numpy()
    return np.ascontiguousarray(array.astype(numpy_dtype(dtype), copy=False))


@functools.lru_cache
def _loaded(folder: Path) -> tuple[GpuModeProblem, Program]:
    from mctskernel.problems.gpu_mode.program import load_program  # noqa: PLC0415 - imports PyTorch

    problem = read_gpu_mode_problem(folder)
    try:
        texts = {name: (folder / BESIDE.format(name=name)).read_text("utf-8") for name in problem.modules}
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"A module of the problem can't be read: {error}.") from error
    return problem, load_program(texts)
