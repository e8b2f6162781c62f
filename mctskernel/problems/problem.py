"""What a benchmark has to say for its problems to be searched, and its solutions written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task

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
