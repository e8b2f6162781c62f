"""GPU MODE: a problem is a folder with task.yml, and a reference.py that makes data and says what is to come of them.

The format is in docs of https://github.com/gpu-mode/kernelbot, and tasks are in
https://github.com/gpu-mode/reference-kernels.
"""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.problems.gpu_mode.file import NAME, TASK_FILE, read_task_file
from mctskernel.problems.gpu_mode.solution import solution
from mctskernel.problems.problem import Benchmark, Problem
from mctskernel.problems.torch_task import problem_of


def recognises(path: Path) -> bool:
    """Whether a path is a folder with a task.yml, or that file; nothing of it is run."""
    return _folder(path) is not None


def read(path: Path, language: Language) -> Problem:
    """A problem as a task. Runs its Python. Raises TaskError."""
    from mctskernel.problems.gpu_mode.task import drafted  # noqa: PLC0415 - imports PyTorch

    folder = _folder(path)
    if folder is None:
        raise TaskError(f"{path} has no {TASK_FILE}.")
    return problem_of(NAME, drafted(read_task_file(folder)), language)


GPU_MODE = Benchmark(NAME, recognises, read, solution)


def _folder(path: Path) -> Path | None:
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    return path if (path / TASK_FILE).is_file() else None
