"""Problems of GPU MODE: a folder with task.yml and reference.py; a solution is a submission.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Precision, Task, TaskError
from mctskernel.problems.gpu_mode.reference import GpuModeProblem
from mctskernel.problems.gpu_mode.task_file import NAME, TASK_FILE, folder_of, read_task_file
from mctskernel.problems.host_code import HostCodeError, dimensions_of_inputs, host_module
from mctskernel.problems.problem import Benchmark, Problem, read_record


def read(path: Path, language: Language | None, precision: Precision = Precision.LOCKED) -> Problem:
    """Read a problem as a task. Runs its Python. Raises TaskError."""
    from mctskernel.problems.gpu_mode.task import drafted  # noqa: PLC0415 - imports PyTorch, an extra
    from mctskernel.problems.torch_task import problem_of  # noqa: PLC0415 - as above

    folder = folder_of(path)
    if folder is None:
        raise TaskError(f"{path} has no {TASK_FILE}.")
    return problem_of(NAME, drafted(read_task_file(folder), precision), language)


SUBMISSION = "submission.py"

_FUNCTION = "custom_kernel"


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """submission.py. Raises TaskError for a kernel that can't stand in a module."""
    problem = read_record(task.folder, GpuModeProblem)
    try:
        module = host_module(task, kernel, function="run", reserved=[_FUNCTION])
    except HostCodeError as error:
        raise TaskError(f"This kernel has no {SUBMISSION}: {error}") from error
    return {SUBMISSION: f"{module}\n\n{_entry(task, problem)}"}


def _entry(task: Task, problem: GpuModeProblem) -> str:
    places = {leaf.input or leaf.dimension: f"data{leaf.subscripts}" for leaf in reversed(problem.leaves)}
    names = [tensor.name for tensor in task.inputs]
    given = [f"{places[name]}.reshape(1)" if name in problem.scalars else places[name] for name in names]
    dimensions = dict.fromkeys(leaf.dimension for leaf in problem.leaves if leaf.dimension)
    given += [f"{name}={places[name]}" for name in dimensions if name not in dimensions_of_inputs(task)]
    outputs = [each.name for each in problem.outputs]
    results = [f"{name}.reshape(())" if name in problem.scalars else name for name in outputs]
    return (
        f"def {_FUNCTION}(data):\n    {', '.join(outputs)} = run({', '.join(given)})\n"
        f"    return {', '.join(results)}\n"
    )


GPU_MODE = Benchmark(NAME, lambda path: folder_of(path) is not None, read, solution)
