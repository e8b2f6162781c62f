"""Problems of GPU MODE: a folder with task.yml and reference.py, and the functions of a task that is made of one.

The format is in the docs of https://github.com/gpu-mode/kernelbot, and problems are in
https://github.com/gpu-mode/reference-kernels. PyTorch is imported when a problem is read or its reference is called.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.expression import evaluate_int
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Array, Shape, Task, TaskError
from mctskernel.problems.host_code import HostCodeError, host_module, host_module_into
from mctskernel.problems.host_code.expressions import solve
from mctskernel.problems.problem import Benchmark, Problem, read_record
from mctskernel.problems.torch_reference import in_numpy

if TYPE_CHECKING:
    from mctskernel.problems.gpu_mode.cases import Program

NAME = "GPU MODE"
TASK_FILE = "task.yml"
MOST_BYTES = 1 << 20

Plain = bool | int | float | str
Arguments = Mapping[str, Plain]
"""Arguments of `generate_input`."""

Cases = Annotated[tuple[dict[str, Plain], ...], msgspec.Meta(max_length=200)]


class _File(msgspec.Struct, frozen=True):
    """A file of the problem, and its path; that of the submission is `@SUBMISSION@`."""

    name: str
    source: str = ""


class _Document(msgspec.Struct, frozen=True):
    """The content of task.yml; unknown fields are ignored."""

    files: tuple[_File, ...] = ()
    tests: Cases = ()
    benchmarks: Cases = ()
    lang: str = "py"
    multi_gpu: bool = False
    ranking_by: Literal["last", "mean", "geom"] = "last"
    description: str | None = None


@dataclass(frozen=True)
class TaskFile:
    """A problem as its task.yml describes it. `modules` are the texts of its Python files by module name."""

    name: str
    description: str
    modules: Mapping[str, str]
    tests: tuple[Arguments, ...]
    benchmarks: tuple[Arguments, ...]
    ranking_by: str

    @property
    def cases(self) -> tuple[Arguments, ...]:
        """The tests, then the benchmarks."""
        return (*self.tests, *self.benchmarks)


def recognises(path: Path) -> bool:
    """Whether a path is a folder with a task.yml, or that file; runs nothing."""
    return _folder(path) is not None


def read(path: Path, language: Language) -> Problem:
    """Read a problem as a task. Runs its Python. Raises TaskError."""
    from mctskernel.problems.gpu_mode.task import drafted  # noqa: PLC0415 - imports PyTorch
    from mctskernel.problems.torch_task import problem_of  # noqa: PLC0415 - as above

    folder = _folder(path)
    if folder is None:
        raise TaskError(f"{path} has no {TASK_FILE}.")
    return problem_of(NAME, drafted(read_task_file(folder)), language)


def read_task_file(folder: Path) -> TaskFile:
    """Read the folder of a problem without running anything. Raises TaskError for one that can't be searched."""
    where = folder / TASK_FILE
    document = _document(where)
    tests, benchmarks = document.tests, document.benchmarks
    if document.lang != "py":
        raise TaskError(f"{where}: it takes submissions in {document.lang!r}; only Python is supported.")
    if document.multi_gpu or any("world_size" in case for case in (*tests, *benchmarks)):
        raise TaskError(f"{where}: it runs on several GPUs, and a search times kernels on one.")
    if not benchmarks:
        raise TaskError(f"{where} has no benchmarks, so there is nothing to time.")
    modules = {
        file.name.removesuffix(".py"): _text(_inside(folder, file.source, where))
        for file in document.files
        if file.source != "@SUBMISSION@" and file.name != "eval.py" and _MODULE.fullmatch(file.name)
    }
    if "reference" not in modules:
        raise TaskError(f"{where} lists no reference.py among its files.")
    name = re.sub(r"[^\w.-]+", "_", folder.resolve().name, flags=re.ASCII).strip("_.-") or "task"
    description = (document.description or "").strip()
    return TaskFile(name, description, modules, tests or benchmarks, benchmarks, document.ranking_by)


_MODULE = re.compile(r"[A-Za-z_]\w*\.py")


def _folder(path: Path) -> Path | None:
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    return path if (path / TASK_FILE).is_file() else None


def _document(path: Path) -> _Document:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TaskError("Problems of GPU MODE need PyYAML: pip install 'mctskernel[benchmarks]'.") from error
    text = _text(path)
    try:
        return msgspec.convert(yaml.safe_load(text), _Document)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TaskError(f"{path} is not valid: {str(error)[:500]}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TaskError(f"{path} is larger than {MOST_BYTES >> 20} MiB.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} can't be read: {error}.") from error


def _inside(folder: Path, source: str, where: Path) -> Path:
    """A file in the problem's folder, or in the one around it, where problems keep shared files."""
    path = (folder / source).resolve()
    if not path.is_relative_to(folder.resolve().parent):
        raise TaskError(f"{where} names {source!r}, which is outside of its folder and the one around it.")
    if not path.is_file():
        raise TaskError(
            f"{where} lists {source!r}, which is missing: copy it along with the problem's folder."
        )
    return path


def integer_arguments(cases: Sequence[Arguments]) -> dict[str, tuple[int, ...]]:
    """The integer arguments over all cases, without seeds."""
    names = [name for name in cases[0] if name != "seed"]
    return {
        name: tuple(int(case[name]) for case in cases)
        for name in names
        if all(isinstance(case.get(name), int) and not isinstance(case.get(name), bool) for case in cases)
    }


MODULE_FILE = "problem_{name}.py"
"""The file of a problem's module in the task's folder."""


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of the nested data: an input of the task, a buffer for an output, a dimension, or a constant value.

    `subscripts` lead to it, as in `data[0]['weights']`.
    """

    subscripts: str
    input: str = ""
    buffer: str = ""
    dimension: str = ""
    value: bool | int | float | str | None = None


class TensorType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The element type and extents of a tensor in the data."""

    dtype: str
    shape: tuple[int | str, ...]


class GpuModeProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `PROBLEM_FILE`.

    `cases` are the arguments of the tests and then the benchmarks, which the dimension `case` numbers. `structure` is
    the nesting of the data, as PyTorch's pytree writes it, and `leaves` fill it in order. `scalars` are inputs and
    outputs without extents in PyTorch, which have one of 1 in the task.
    """

    benchmark: str
    name: str
    modules: tuple[str, ...]
    cases: tuple[dict[str, bool | int | float | str], ...]
    case: str
    structure: str
    leaves: tuple[Leaf, ...]
    inputs: dict[str, TensorType]
    buffers: dict[str, TensorType]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...]


def read_gpu_mode_problem(folder: Path) -> GpuModeProblem:
    """The problem of a task's folder. Raises TaskError."""
    return read_record(folder, GpuModeProblem)


def call_reference(folder: Path, shape: Shape, inputs: Mapping[str, Array]) -> Array | tuple[Array, ...]:
    """Call `ref_kernel` with inputs by name, in their precision. Raises TaskError."""
    problem, program = _loaded(folder)
    return in_numpy(reference_function(problem, program, shape, tuple(inputs)), *inputs.values())


def reference_function(
    problem: GpuModeProblem, program: Program, shape: Shape, names: tuple[str, ...]
) -> Callable[..., Any]:
    """`ref_kernel` as a function of the task's inputs, in the order of `names`."""
    import torch  # noqa: PLC0415 - as said above
    from torch.utils import _pytree as pytree  # noqa: PLC0415 - as above

    def function(*tensors: Any) -> Any:
        given = dict(zip(names, tensors, strict=True))
        sizes = {**shape, **_sizes(problem, given)}

        def value(leaf: Leaf) -> Any:
            if leaf.input:
                tensor = given[leaf.input]
                return tensor.reshape(()) if leaf.input in problem.scalars else tensor
            if leaf.buffer:
                kind = problem.buffers[leaf.buffer]
                extents = [sizes[each] if each in sizes else evaluate_int(each, sizes) for each in kind.shape]
                return torch.zeros(extents, dtype=getattr(torch, kind.dtype), device=tensors[0].device)
            return sizes[leaf.dimension] if leaf.dimension else leaf.value

        structure = pytree.treespec_loads(problem.structure)
        data = pytree.tree_unflatten(map(value, problem.leaves), structure)
        outputs = [
            each.reshape(1) if each.dim() == 0 else each
            for each in pytree.tree_leaves(program.reference(data))
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return function


def make_case_inputs(folder: Path, rng: np.random.Generator, shape: Shape) -> dict[str, Array]:
    """Fresh inputs of a case from `generate_input`, with a seed of ours. Raises TaskError."""
    from mctskernel.problems.gpu_mode.cases import MOST_SEED  # noqa: PLC0415 - imports PyTorch

    problem, program = _loaded(folder)
    data = program.generate(problem.cases[shape[problem.case]], int(rng.integers(MOST_SEED)))
    return input_arrays(problem, data)


def input_arrays(problem: GpuModeProblem, data: object) -> dict[str, Array]:
    """The task's inputs in data of `generate_input`."""
    from torch.utils import _pytree as pytree  # noqa: PLC0415 - as said above

    return {
        leaf.input: _array(tensor, problem.inputs[leaf.input].dtype)
        for leaf, tensor in zip(problem.leaves, pytree.tree_leaves(data), strict=True)
        if leaf.input
    }


def _sizes(problem: GpuModeProblem, given: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions in the tensors' extents, which may differ from the case's."""
    return {
        extent: given[name].shape[axis]
        for name, kind in problem.inputs.items()
        if name in given
        for axis, extent in enumerate(kind.shape)
        if isinstance(extent, str) and extent.isidentifier()
    }


def _array(tensor: Any, dtype: str) -> Array:
    tensor = tensor.detach().reshape(tensor.shape or (1,))
    narrow = dtype in {"bfloat16", "float16"}
    array: Array = (tensor.float() if narrow else tensor).contiguous().numpy()
    return np.ascontiguousarray(array.astype(numpy_dtype(dtype), copy=False))


@functools.lru_cache
def _loaded(folder: Path) -> tuple[GpuModeProblem, Program]:
    from mctskernel.problems.gpu_mode.cases import load_program  # noqa: PLC0415 - imports PyTorch

    problem = read_gpu_mode_problem(folder)
    try:
        texts = {
            name: (folder / MODULE_FILE.format(name=name)).read_text("utf-8") for name in problem.modules
        }
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"A module of the problem can't be read: {error}.") from error
    return problem, load_program(texts)


SUBMISSION = "submission.py"

_FUNCTION = "custom_kernel"


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """submission.py. Raises TaskError for a kernel that can't stand in a module."""
    problem = read_gpu_mode_problem(task.folder)
    into = len(problem.buffers) == len(problem.outputs)
    write = host_module_into if into else host_module
    try:
        module = write(task, kernel, function="run", reserved=[_FUNCTION])
    except HostCodeError as error:
        raise TaskError(f"This kernel has no {SUBMISSION}: {error}") from error
    return {SUBMISSION: f"{module}\n\n{_entry(task, problem, into=into)}"}


def _entry(task: Task, problem: GpuModeProblem, *, into: bool) -> str:
    """The function that the harness calls; `into` says that it writes into the buffers of the data."""
    places = {
        leaf.input or leaf.buffer or leaf.dimension: f"data{leaf.subscripts}"
        for leaf in reversed(problem.leaves)
    }
    tensors = [tensor.name for tensor in task.inputs] + (list(problem.outputs) if into else [])
    given = [f"{places[name]}.reshape(1)" if name in problem.scalars else places[name] for name in tensors]
    solved = _solved_dimensions(task, into=into)
    dimensions = dict.fromkeys(leaf.dimension for leaf in problem.leaves if leaf.dimension)
    given += [f"{name}={places[name]}" for name in dimensions if name not in solved]
    call = f"run({', '.join(given)})"
    if into:
        results = ", ".join(places[name] for name in problem.outputs)
        return f"def {_FUNCTION}(data):\n    {call}\n    return {results}\n"
    names = ", ".join(problem.outputs)
    results = ", ".join(
        f"{name}.reshape(())" if name in problem.scalars else name for name in problem.outputs
    )
    return f"def {_FUNCTION}(data):\n    {names} = {call}\n    return {results}\n"


def _solved_dimensions(task: Task, *, into: bool) -> frozenset[str]:
    """The dimensions that the host code computes from shapes."""
    tensors = (*task.inputs, *task.outputs) if into else task.inputs
    names = [name for name in task.search_shapes[0] if name != task.inputs_by]
    return frozenset(each.name for each in solve(tensors, names))


GPU_MODE = Benchmark(NAME, recognises, read, solution)
