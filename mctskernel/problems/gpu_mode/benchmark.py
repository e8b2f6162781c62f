"""GPU MODE: a problem is a folder with task.yml, and a reference.py that makes data and says what is to come of them.

The format is in docs of https://github.com/gpu-mode/kernelbot, and tasks are in
https://github.com/gpu-mode/reference-kernels.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.problems.gpu_mode.file import TASK_FILE, read_task_file
from mctskernel.problems.gpu_mode.reference import BESIDE
from mctskernel.problems.gpu_mode.solution import solution
from mctskernel.problems.problem import PROBLEM_FILE, Benchmark, Problem
from mctskernel.problems.torch_task import task_files

NAME = "GPU MODE"


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


GPU_MODE = Benchmark(NAME, recognises, read, solution)


def _folder(path: Path) -> Path | None:
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    return path if (path / TASK_FILE).is_file() else None
