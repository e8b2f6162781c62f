"""The plain suite: kernels as a beginner writes them, each with what it computes in words.

A folder of `plain_suite/` is a task as users write one, with a description.md; where it holds nothing but the
description, it is the built-in task of that name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.task import TaskError
from mctskernel.tasks import builtin_tasks

SUITE = Path(__file__).parents[1] / "plain_suite"


@dataclass(frozen=True)
class PlainTask:
    """A task of the suite: its folder, and what it computes in a paragraph that names its tensors and dimensions."""

    name: str
    folder: Path
    description: str


def plain_tasks() -> dict[str, PlainTask]:
    """The suite by name, in alphabetical order. Raises TaskError for a description without a task."""
    return {file.parent.name: _plain_task(file) for file in sorted(SUITE.glob("*/description.md"))}


def chosen_tasks(names: Iterable[str]) -> list[PlainTask]:
    """The tasks of these names, in their order. Raises TaskError for one that the suite doesn't have."""
    suite = plain_tasks()
    found = []
    for name in names:
        if name not in suite:
            close = difflib.get_close_matches(name, suite, n=1)
            instead = f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(suite)}."
            raise TaskError(f"The plain suite has no task '{name}'. {instead}")
        found.append(suite[name])
    return found


def _plain_task(file: Path) -> PlainTask:
    name = file.parent.name
    folder = file.parent if (file.parent / "task.toml").is_file() else builtin_tasks().get(name)
    if folder is None:
        raise TaskError(
            f"The plain suite's '{name}' has neither a task.toml nor the name of a built-in task."
        )
    return PlainTask(name, folder, file.read_text("utf-8").strip())
