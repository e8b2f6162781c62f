"""Folders of tasks that are made of problems."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.task import TaskError
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import find_benchmark
from mctskernel.tasks import builtin_tasks


def is_problem(name_or_path: str | Path) -> bool:
    """Whether this is where a benchmark's problem lies: no built-in task's name, and no task's folder."""
    path = Path(name_or_path)
    if str(name_or_path) in builtin_tasks() or path.name == "task.toml" or (path / "task.toml").is_file():
        return False
    return path.exists() and find_benchmark(path) is not None


def write_problem(problem: Problem, folder: Path) -> None:
    """Write a problem's files into a folder, made if need be. Raises TaskError before one is overwritten."""
    present = [name for name in problem.files if (folder / name).exists()]
    if present:
        raise TaskError(f"{folder / present[0]} exists; a new task overwrites nothing.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in problem.files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise TaskError(f"{folder} can't be written: {error.strerror or error}.") from error
