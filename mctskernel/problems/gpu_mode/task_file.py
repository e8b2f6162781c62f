"""Problems of GPU MODE as their task.yml describes them, read without running anything.

The format is in the docs of https://github.com/gpu-mode/kernelbot, and problems are in
https://github.com/gpu-mode/reference-kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import read_text
from mctskernel.problems.problem import task_name

NAME = "GPU MODE"
TASK_FILE = "task.yml"

Plain = bool | int | float | str
Arguments = Mapping[str, Plain]  # arguments of `generate_input`

Cases = Annotated[tuple[dict[str, Plain], ...], msgspec.Meta(max_length=200)]


class _File(msgspec.Struct, frozen=True):
    """A file of the problem, and its path; that of the submission is `@SUBMISSION@`."""

    name: str
    source: str = ""


class TaskFile(msgspec.Struct, frozen=True):
    """The content of task.yml; unknown fields are ignored. `modules` are the texts of its Python files by name."""

    files: tuple[_File, ...] = ()
    tests: Cases = ()
    benchmarks: Cases = ()
    lang: str = "py"
    multi_gpu: bool = False
    ranking_by: Literal["last", "mean", "geom"] = "last"
    description: str | None = None
    name: str = ""
    modules: dict[str, str] = {}

    @property
    def cases(self) -> tuple[Arguments, ...]:
        return (*self.tests, *self.benchmarks)


def read_task_file(folder: Path) -> TaskFile:
    """Read the folder of a problem without running anything. Raises TaskError for one that can't be searched."""
    where = folder / TASK_FILE
    found = _document(where)
    if found.lang != "py":
        raise TaskError(f"{where}: it takes submissions in {found.lang!r}; only Python is supported.")
    if found.multi_gpu or any("world_size" in case for case in found.cases):
        raise TaskError(f"{where}: it runs on several GPUs, and a search times kernels on one.")
    if not found.benchmarks:
        raise TaskError(f"{where} has no benchmarks, so there is nothing to time.")
    modules = {
        file.name.removesuffix(".py"): read_text(_inside(folder, file.source, where))
        for file in found.files
        if file.source != "@SUBMISSION@" and file.name != "eval.py" and _MODULE.fullmatch(file.name)
    }
    if "reference" not in modules:
        raise TaskError(f"{where} lists no reference.py among its files.")
    return msgspec.structs.replace(
        found,
        name=task_name(folder.resolve().name),
        tests=found.tests or found.benchmarks,
        description=(found.description or "").strip(),
        modules=modules,
    )


_MODULE = re.compile(r"[A-Za-z_]\w*\.py")


def folder_of(path: Path) -> Path | None:
    """The folder of the problem at a path, which is a folder with a task.yml or that file; None for another path."""
    if path.name == TASK_FILE and path.is_file():
        return path.parent
    return path if (path / TASK_FILE).is_file() else None


def _document(path: Path) -> TaskFile:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TaskError("Problems of GPU MODE need PyYAML: pip install 'mctskernel[benchmarks]'.") from error
    text = read_text(path)
    try:
        return msgspec.convert(yaml.safe_load(text), TaskFile)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TaskError(f"{path} is not valid: {str(error)[:500]}") from error


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
    names = [name for name in cases[0] if name != "seed"]
    return {
        name: tuple(int(case[name]) for case in cases)
        for name in names
        if all(isinstance(case.get(name), int) and not isinstance(case.get(name), bool) for case in cases)
    }
