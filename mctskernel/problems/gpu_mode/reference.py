"""The functions of a task that is made of a GPU MODE problem, and its record.

PyTorch is imported when the reference is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Array, Shape, Tensor
from mctskernel.core.task_file import read_text
from mctskernel.problems.gpu_mode.task_file import Plain
from mctskernel.problems.problem import read_record
from mctskernel.problems.torch_reference import array_of, in_numpy

if TYPE_CHECKING:
    from mctskernel.problems.gpu_mode.cases import Program

MODULE_FILE = "problem_{name}.py"  # the file of a problem's module in the task's folder


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of nested data: an input, a buffer, a dimension or a constant; `subscripts` as in `['weights']`."""

    subscripts: str
    input: str = ""
    buffer: str = ""
    dimension: str = ""
    value: Plain | None = None


class GpuModeProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `PROBLEM_FILE`.

    `cases` are the arguments of the tests and then the benchmarks, which the dimension `case` numbers. `structure` is
    the nesting of the data, as PyTorch's pytree writes it, and `leaves` fill it in order. `scalars` are inputs and
    outputs without extents in PyTorch, which have one of 1 in the task.
    """

    benchmark: str
    name: str
    modules: tuple[str, ...]
    cases: tuple[dict[str, Plain], ...]
    case: str
    structure: str
    leaves: tuple[Leaf, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    scalars: tuple[str, ...]


def call_reference(folder: Path, /, *inputs: Array, **shape: int) -> Array | tuple[Array, ...]:
    """Call `ref_kernel`, in the precision of the inputs. Raises TaskError."""
    problem, program = _loaded(folder)
    return in_numpy(reference_function(problem, program, shape), *inputs)


def reference_function(problem: GpuModeProblem, program: Program, shape: Shape) -> Callable[..., Any]:
    """`ref_kernel` as a function of the task's inputs in their order."""
    import torch  # noqa: PLC0415 - as said above
    from torch.utils import _pytree as pytree  # noqa: PLC0415 - as above

    def function(*tensors: Any) -> Any:
        given = {each.name: tensor for each, tensor in zip(problem.inputs, tensors, strict=True)}
        sizes, outputs = {**shape, **_sizes(problem, given)}, {each.name: each for each in problem.outputs}

        def value(leaf: Leaf) -> Any:
            if leaf.input:
                tensor = given[leaf.input]
                return tensor.reshape(()) if leaf.input in problem.scalars else tensor
            if leaf.buffer:
                kind = outputs[leaf.buffer]
                extents = [sizes[each] if each in sizes else evaluate_int(each, sizes) for each in kind.shape]
                return torch.zeros(extents, dtype=getattr(torch, kind.dtype), device=tensors[0].device)
            return sizes[leaf.dimension] if leaf.dimension else leaf.value

        structure = pytree.treespec_loads(problem.structure)
        data = pytree.tree_unflatten(map(value, problem.leaves), structure)
        results = pytree.tree_leaves(program.reference(data))
        return results[0] if len(results) == 1 else tuple(results)

    return function


def make_problem_inputs(folder: Path, rng: np.random.Generator, /, **shape: int) -> dict[str, Array]:
    """Fresh inputs of a case from `generate_input`, with a seed of ours. Raises TaskError."""
    from torch.utils import _pytree as pytree  # noqa: PLC0415 - as said above

    from mctskernel.problems.gpu_mode.cases import MOST_SEED  # noqa: PLC0415 - imports PyTorch

    problem, program = _loaded(folder)
    data = program.generate(problem.cases[shape[problem.case]], int(rng.integers(MOST_SEED)))
    leaves = zip(problem.leaves, pytree.tree_leaves(data), strict=True)
    return {leaf.input: array_of(tensor) for leaf, tensor in leaves if leaf.input}


def _sizes(problem: GpuModeProblem, given: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions in the tensors' extents, which may differ from the case's."""
    return {
        extent: given[tensor.name].shape[axis]
        for tensor in problem.inputs
        for axis, extent in enumerate(tensor.shape)
        if isinstance(extent, str) and extent.isidentifier()
    }


@functools.lru_cache
def _loaded(folder: Path) -> tuple[GpuModeProblem, Program]:
    from mctskernel.problems.gpu_mode.cases import load_program  # noqa: PLC0415 - imports PyTorch

    problem = read_record(folder, GpuModeProblem)
    texts = {name: read_text(folder / MODULE_FILE.format(name=name)) for name in problem.modules}
    return problem, load_program(texts)
