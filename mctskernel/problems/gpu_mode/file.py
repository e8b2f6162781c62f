"""task.yml of a GPU MODE task: which files it has, and the arguments of its tests and benchmarks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mctskernel.core.task import TaskError

NAME = "GPU MODE"
TASK_FILE = "task.yml"
MOST_BYTES = 1 << 20
MOST_CASES = 200

Plain = bool | int | float | str
Arguments = Mapping[str, Plain]
"""What `generate_input` is called with."""

RANKINGS = ("last", "mean", "geom")


@dataclass(frozen=True)
class TaskFile:
    """A task as its file describes it. `modules` are the texts of its Python files by the name that imports them."""

    name: str
    description: str
    modules: Mapping[str, str]
    tests: tuple[Arguments, ...]
    benchmarks: tuple[Arguments, ...]
    ranking_by: str

    @property
    def cases(self) -> tuple[Arguments, ...]:
        """Those of the tests, then those of the benchmarks."""
        return (*self.tests, *self.benchmarks)


def read_task_file(folder: Path) -> TaskFile:
    """Read the folder of a task; runs nothing of it. Raises TaskError for what can't be searched, and says why."""
    where = folder / TASK_FILE
    document = _document(where)
    language = document.get("lang", "py")
    if language != "py":
        raise TaskError(
            f"{where}: it takes submissions in {language!r}, and only those in Python are written here."
        )
    tests, benchmarks = (_cases(document.get(key, []), where, key) for key in ("tests", "benchmarks"))
    if document.get("multi_gpu") or any("world_size" in case for case in (*tests, *benchmarks)):
        raise TaskError(f"{where}: it runs on several GPUs, and a search times kernels on one.")
    if not benchmarks:
        raise TaskError(f"{where} has no benchmarks, so there is nothing to time.")
    ranking = document.get("ranking_by", "last")
    if ranking not in RANKINGS:
        raise TaskError(f"{where}: 'ranking_by' is {ranking!r}; known are {', '.join(RANKINGS)}.")
    modules = _modules(document.get("files", []), where)
    if "reference" not in modules:
        raise TaskError(f"{where} lists no reference.py among its files.")
    name = re.sub(r"[^\w.-]+", "_", folder.resolve().name, flags=re.ASCII).strip("_.-") or "task"
    return TaskFile(
        name, str(document.get("description", "")).strip(), modules, tests or benchmarks, benchmarks, ranking
    )


def argument_vectors(cases: Sequence[Arguments]) -> dict[str, tuple[int, ...]]:
    """The whole numbers among the arguments, over all cases, but for seeds."""
    names = [name for name in cases[0] if name != "seed"]
    return {
        name: tuple(int(case[name]) for case in cases)
        for name in names
        if all(isinstance(case.get(name), int) and not isinstance(case.get(name), bool) for case in cases)
    }


def _document(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TaskError("Tasks of GPU MODE need PyYAML: pip install 'mctskernel[benchmarks]'.") from error
    text = _text(path)
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TaskError(f"{path} is no YAML: {str(error)[:500]}") from error
    if not isinstance(document, dict):
        raise TaskError(f"{path} holds no table of keys.")
    return document


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TaskError(f"{path} is larger than {MOST_BYTES >> 20} MiB.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} can't be read: {error}.") from error


def _cases(entries: object, where: Path, key: str) -> tuple[Arguments, ...]:
    if not isinstance(entries, list) or len(entries) > MOST_CASES:
        raise TaskError(f"{where}: '{key}' must be a list of at most {MOST_CASES} entries.")
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(name, str) and isinstance(value, Plain) for name, value in entry.items()
        ):
            raise TaskError(f"{where}: each of '{key}' must map arguments to numbers, truth values or words.")
    return tuple(entries)


def _modules(entries: object, where: Path) -> Mapping[str, str]:
    """The Python files that a submission is judged with, but for the harness itself."""
    if not isinstance(entries, list):
        raise TaskError(f"{where}: 'files' must be a list.")
    found = {}
    for entry in entries:
        match entry:
            case {"name": str(), "source": "@SUBMISSION@"} | {"name": "eval.py"}:
                pass
            case {"name": str(name), "source": str(source)} if re.fullmatch(r"[A-Za-z_]\w*\.py", name):
                found[name.removesuffix(".py")] = _text(_inside(where.parent, source, where))
            case {"name": str(), "source": str()}:
                pass
            case _:
                raise TaskError(f"{where}: each of 'files' must have a 'name' and a 'source'.")
    return found


def _inside(folder: Path, source: str, where: Path) -> Path:
    """A file of the task, or beside its folder, where tasks keep what they share."""
    path = (folder / source).resolve()
    if not path.is_relative_to(folder.resolve().parent):
        raise TaskError(f"{where} takes {source!r} from outside of its folder and the one around it.")
    if not path.is_file():
        raise TaskError(f"{where} lists {source!r}, which is missing: copy it along with the task's folder.")
    return path
