"""GPU MODE: a problem is a folder with task.yml, and a reference.py that makes data and says what is to come of them.

The format is in docs of https://github.com/gpu-mode/kernelbot, and tasks are in
https://github.com/gpu-mode/reference-kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.host_code import HostCodeError, host_module, host_module_into
from mctskernel.problems.gpu_mode.file import TASK_FILE, read_task_file
from mctskernel.problems.gpu_mode.reference import BESIDE, GpuModeProblem, read_gpu_mode_problem
from mctskernel.problems.gpu_mode.structure import Path as Place
from mctskernel.problems.gpu_mode.structure import places, subscripts
from mctskernel.problems.problem import PROBLEM_FILE, Benchmark, Problem
from mctskernel.problems.torch_task import task_files

NAME = "GPU MODE"
SUBMISSION = "submission.py"

_FUNCTION = "custom_kernel"


def recognises(path: Path) -> bool:
    """Whether a path is a folder with a task.yml, or that file; nothing of it is run."""
    return _folder(path) is not None


def read(path: Path, language: Language) -> Problem:
    """A problem as a task. Runs its Python. Raises TaskError."""
    from mctskernel.problems.gpu_mode.task import drafted  # noqa: PLC0415 - imports PyTorch

    folder = _folder(path)
    if folder is None:
        raise TaskError(f"{path} has no {TASK_FILE}.")
    file = read_task_file(folder)
    draft = drafted(file)
    written = task_files(draft.task, language)
    files = {
        **written.files,
        PROBLEM_FILE: msgspec.json.format(msgspec.json.encode(draft.problem), indent=1) + b"\n",
        **{BESIDE.format(name=name): text.encode() for name, text in file.modules.items()},
    }
    remarks = (*draft.remarks, written.without_kernel) if written.without_kernel else draft.remarks
    return Problem(NAME, draft.task.name, files, remarks)


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


GPU_MODE = Benchmark(NAME, recognises, read, solution)


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


def _taken(path: Place, problem: GpuModeProblem, name: str) -> str:
    source = f"data{subscripts(path)}"
    return f"{source}.reshape(1)" if name in problem.scalars else source


def _following(task: Task, *, into: bool) -> frozenset[str]:
    """The dimensions that the module works out from shapes."""
    from mctskernel.host_code.dimensions import solve  # noqa: PLC0415

    tensors = (*task.inputs, *task.outputs) if into else task.inputs
    return frozenset(
        each.name for each in solve(tensors, [n for n in task.search_shapes[0] if n != task.inputs_by])
    )


def _folder(path: Path) -> Path | None:
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    return path if (path / TASK_FILE).is_file() else None
