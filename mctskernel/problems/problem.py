"""The interface of a benchmark: its problems become tasks, and kernels become its solutions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import gaierror
from typing import TypeVar
from urllib.error import URLError

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task import Precision, Task, TaskError

PROBLEM_FILE = "problem.json"
"""The file in a task's folder that says which benchmark's problem it is, and what its solutions need."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Problem:
    """A problem as a task: the files of its folder by name, and notes for the user.

    `files` are task.toml, reference.py, `PROBLEM_FILE`, the starting kernels, and those of the problem's own files that
    the reference reads. They are self-contained.
    """

    benchmark: str
    name: str
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    @property
    def has_kernel(self) -> bool:
        return any(f"kernel{language.suffix}" in self.files for language in SOURCE_LANGUAGES)


@dataclass(frozen=True)
class Benchmark:
    """A format of problems and solutions.

    `recognises` looks at a path without running anything. `read` makes a task; it may run the problem's Python, as
    loading a task does, and raises TaskError for a problem that isn't supported. `solution` gives the files of a
    solution by name, for a task with a `PROBLEM_FILE` and a kernel. Without a language `read` makes starting kernels in
    every one.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Language | None, Precision], Problem]
    solution: Callable[[Task, Kernel], Mapping[str, str]]


Record = TypeVar("Record", bound=msgspec.Struct)  # the content of `PROBLEM_FILE` for one benchmark


def read_record(folder: Path, kind: type[Record]) -> Record:
    """Read `PROBLEM_FILE` in a task's folder. Raises TaskError."""
    path = folder / PROBLEM_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *UNDECODABLE) as error:
        raise TaskError(f"{path} can't be read: {excerpt(error)}.") from error


@contextmanager
def blamed(words: str, kind: type[TaskError] = TaskError) -> Iterator[None]:
    """Turn whatever a problem's own code raises in this block into a TaskError that begins with these words."""
    try:
        yield
    except kind:
        raise
    except (Exception, SystemExit) as error:
        first = str(error).strip().partition("\n")[0][:500]
        said = f"{words} {type(error).__name__}: {first}"
        if isinstance(error, URLError | ConnectionError | gaierror) or "internet connection" in said:
            said += ". It needs the network; a problem's file must hold all that it needs"
        raise kind(said) from error


def task_name(text: str) -> str:
    """A text as the name of a task and its folder."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("_.-") or "problem"


@dataclass(frozen=True)
class Memory:
    size: int
    owner: str

    def require(self, needed: int, name: str) -> None:
        if needed > self.size:
            raise TaskError(
                f"{name} needs at least {needed / 1e9:.1f} GB for its inputs, weights and outputs, and {self.owner} "
                f"has {self.size / 1e9:.1f} GB: search it on a larger machine, or with smaller sizes."
            )


def available_memory() -> Memory:
    """The memory of the first GPU, or of this machine where that is less."""
    import torch  # noqa: PLC0415 - an extra

    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text("ascii").strip() if _CGROUP_LIMIT.is_file() else ""
    if limit.isdecimal():
        host = min(host, int(limit))
    if torch.cuda.is_available():
        total = int(torch.cuda.get_device_properties(0).total_memory)
        if total < host:
            return Memory(total, torch.cuda.get_device_name(0))
    return Memory(host, "this machine")
