"""A kernel as a submission.py for GPU MODE's harness: its host code, and `custom_kernel`, which hands it the data."""

from __future__ import annotations

from collections.abc import Mapping

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, TaskError
from mctskernel.host_code import HostCodeError, host_module, host_module_into
from mctskernel.host_code.dimensions import solve
from mctskernel.problems.gpu_mode.reference import GpuModeProblem, read_gpu_mode_problem
from mctskernel.problems.gpu_mode.structure import Path, places, subscripts

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
    """The function that the harness calls."""
    inputs: dict[str, str] = {}
    buffers: dict[str, str] = {}
    dimensions: dict[str, str] = {}
    for path, leaf in places(problem.structure):
        if leaf.input:
            inputs[leaf.input] = _taken(path, problem, leaf.input)
        elif leaf.buffer:
            buffers[leaf.buffer] = _taken(path, problem, leaf.buffer)
        elif leaf.dimension:
            dimensions.setdefault(leaf.dimension, f"data{subscripts(path)}")
    given = [inputs[tensor.name] for tensor in task.inputs]
    given += [buffers[name] for name in problem.outputs] if into else []
    followed = _following(task, into=into)
    given += [f"{name}={source}" for name, source in dimensions.items() if name not in followed]
    call = f"run({', '.join(given)})"
    if into:
        whole = {leaf.buffer: path for path, leaf in places(problem.structure) if leaf.buffer}
        results = ", ".join(f"data{subscripts(whole[name])}" for name in problem.outputs)
        return f"def {_FUNCTION}(data):\n    {call}\n    return {results}\n"
    names = ", ".join(problem.outputs)
    results = ", ".join(
        f"{name}.reshape(())" if name in problem.scalars else name for name in problem.outputs
    )
    return f"def {_FUNCTION}(data):\n    {names} = {call}\n    return {results}\n"


def _taken(path: Path, problem: GpuModeProblem, name: str) -> str:
    source = f"data{subscripts(path)}"
    return f"{source}.reshape(1)" if name in problem.scalars else source


def _following(task: Task, *, into: bool) -> frozenset[str]:
    """The dimensions that the module works out from shapes."""
    tensors = (*task.inputs, *task.outputs) if into else task.inputs
    return frozenset(
        each.name for each in solve(tensors, [n for n in task.search_shapes[0] if n != task.inputs_by])
    )
