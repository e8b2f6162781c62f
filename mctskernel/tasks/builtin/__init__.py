"""The built-in tasks, one folder each, as a user would write one."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.task import TaskError
from mctskernel.core.user_errors import nearest_name

DEFAULT_TASK = "cross_entropy"


def builtin_tasks() -> dict[str, Path]:
    """The folder of each built-in task by its name, in alphabetical order."""
    here = Path(__file__).parent
    return {file.parent.name: file.parent for file in sorted(here.glob("*/task.toml"))}


def find_task(name_or_path: str | Path) -> Path:
    """The folder of a task, given a folder (or its `task.toml`) or a built-in task's name. Raises TaskError.

    A bare word that names both is the built-in task; write `./word` for the folder.
    """
    tasks = builtin_tasks()
    if str(name_or_path) in tasks:
        return tasks[str(name_or_path)]
    path = Path(name_or_path)
    if path.name == "task.toml" and path.is_file():
        return path.parent
    if (path / "task.toml").is_file():
        return path
    if path.is_dir():
        raise TaskError(f"{path} is not a task: it has no task.toml.")
    close = nearest_name(str(name_or_path), tasks)
    suggestion = f" Did you mean '{close}'?" if close else ""
    raise TaskError(
        f"There is no task '{name_or_path}': it is neither a folder with a task.toml "
        f"nor a built-in task ({', '.join(tasks)}).{suggestion}"
    )
