"""What a benchmark has to say for its problems to be searched, and its solutions written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task import Task, TaskError

PROBLEM_FILE = "problem.json"
"""In the folder of a task that was made of a problem: which benchmark's it is, and what its solutions need to know."""


@dataclass(frozen=True)
class Problem:
    """A problem as a task: the texts of its folder by file name, and in sentences what its user should know.

    `files` hold task.toml, reference.py, `PROBLEM_FILE`, a starting kernel in the language that was asked for, and
    whatever of the problem's own files the reference reads: nothing in them points back to where the problem was.
    """

    benchmark: str
    name: str
    files: Mapping[str, bytes]
    remarks: tuple[str, ...] = ()

    @property
    def has_kernel(self) -> bool:
        """Whether a starting kernel is among the files."""
        return any(f"kernel{language.suffix}" in self.files for language in SOURCE_LANGUAGES)


@dataclass(frozen=True)
class Benchmark:
    """A form in which problems are written, and their solutions.

    `recognises` looks at a path without running anything of it. `read` makes a task of what is there; it may run the
    problem's Python, as loading a task does, and raises TaskError with a sentence for a problem that isn't supported.
    `solution` gives the texts of a solution's files by name: of a task that was made of one of its problems (its folder
    holds `PROBLEM_FILE`), and of a kernel.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Language], Problem]
    solution: Callable[[Task, Kernel], Mapping[str, str]]


Record = TypeVar("Record", bound=msgspec.Struct)
"""What `PROBLEM_FILE` says of a benchmark's problem."""


def read_record(folder: Path, kind: type[Record]) -> Record:
    """What `PROBLEM_FILE` in a task's folder says. Raises TaskError where it is missing or says something else."""
    path = folder / PROBLEM_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *UNDECODABLE) as error:
        raise TaskError(f"{path} can't be read: {excerpt(error)}.") from error


def record_text(record: msgspec.Struct) -> bytes:
    """`PROBLEM_FILE` with this in it, in lines."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
