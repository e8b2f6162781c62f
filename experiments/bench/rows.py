"""What became of each problem: a row in a file of its own, written after every stage, so that a table can be continued.

OUT/NAME/row.json     the row
OUT/NAME/task, run    the problem as a task, and the run that searched it
OUT/NAME/log          what its processes printed
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt, indented_json
from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import MisuseError, RunError
from mctskernel.problems.registry import is_problem
from mctskernel.report.baselines import Baselines
from mctskernel.tasks.builtin import builtin_tasks

ROW_FILE = "row.json"
TASK_FILE = "task.toml"


class Read(msgspec.Struct, frozen=True):
    """A problem that was read; `reason` says why there is no starting kernel, and is empty where there is one.

    `seconds` are counted from PyTorch's import on; `gpu_bytes` is about what its tensors take on a GPU. `precision` is
    empty where it is that of the tensors.
    """

    seconds: float
    starts: tuple[str, ...] = ()
    gpu_bytes: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()
    precision: str = ""


class Start(msgspec.Struct, frozen=True):
    """A starting kernel: what became of its evaluation, in a sentence or "ok", and its time where it is right."""

    name: str
    language: Language
    found: str
    seconds: float = 0.0


class Searched(msgspec.Struct, frozen=True):
    """A search that ended; `reason` says why it has no valid answer, `notes` what a user would be told besides.

    `best_seconds` and `speedup`, over the fastest start, are the search's. `origin` names the start that the best grew
    from, `evidence` what binds it. Of `wall_seconds`, in which waiting for others before the search isn't counted,
    opening took `opening_seconds`, the search itself `search_seconds` and the final validation `validation_seconds`;
    the GPU was held for `gpu_seconds`.
    """

    wall_seconds: float
    evaluations: int = 0
    opening_seconds: float = 0.0
    search_seconds: float = 0.0
    validation_seconds: float = 0.0
    gpu_seconds: float = 0.0
    starts: tuple[Start, ...] = ()
    best_seconds: float = 0.0
    speedup: float = 0.0
    origin: str = ""
    evidence: str = ""
    gpu: str = ""
    stop_reason: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = {}


class Row(msgspec.Struct, frozen=True):
    """A problem with what is known of it. A stage that failed, or was stopped, has a sentence in `failures`."""

    problem: str
    read: Read | None = None
    searched: Searched | None = None
    baselines: Baselines | None = None
    failures: dict[str, str] = {}

    @property
    def level(self) -> str:
        """The folder that the problem is in."""
        return self.problem.split("-", 1)[0]

    @property
    def is_valid(self) -> bool:
        """Whether it has an answer that passed the final validation."""
        return self.searched is not None and not self.searched.reason

    @property
    def is_over(self) -> bool:
        """Whether it has an answer, or it is known why there is none."""
        return self.searched is not None or bool(self.reason)

    @property
    def reason(self) -> str:
        """Why it has none; empty while that isn't known."""
        for stage in (self.read, self.searched):
            if stage is not None and stage.reason:
                return stage.reason
        return "" if self.is_valid else self.failures.get("read") or self.failures.get("search") or ""


def find_problems(paths: Sequence[Path], levels: Sequence[str] = ()) -> list[Path]:
    """The problems among files and in folders, in the order of the numbers in their names; task folders as they are.

    A bare word may be a built-in task. `levels` are names of the folders that they are in. Raises MisuseError where
    there is none.
    """
    found: dict[Path, None] = {}
    for path in (builtin_tasks().get(str(each), each) for each in paths):
        if is_problem(path) or (path / TASK_FILE).is_file():
            found[path] = None
        elif path.is_dir():
            inside = [each for each in path.rglob("*") if not _is_hidden(each, path) and is_problem(each)]
            inside.sort(key=natural)
            found |= dict.fromkeys(each for each in inside if each.parent not in inside)
        else:
            raise MisuseError(f"{path} is no problem, no task and no folder.")
    chosen = [each for each in found if not levels or each.parent.name in levels]
    if not chosen:
        raise MisuseError(
            f"There is no problem in {', '.join(map(str, paths))}{' of these levels' if levels else ''}."
        )
    return chosen


def draw(problems: Sequence[Path], count: int | None, seed: int) -> list[Path]:
    """A sample of problems drawn with a seed; all of them without a count or with too large a one.

    They are in the order in which they were drawn, so that the first of them are a sample, too.
    """
    if count is None or count >= len(problems):
        return list(problems)
    return random.Random(seed).sample(list(problems), count)  # noqa: S311 - no secret


def name_of(problem: Path) -> str:
    """The name of a problem in the table, and of its folder: that of the folder that it is in, and its own."""
    path = problem.resolve()
    return f"{path.parent.name}-{path.stem}"


def read_row(folder: Path) -> Row:
    """The row of a problem's folder, without anything known where there is none. Raises RunError."""
    try:
        return msgspec.json.decode((folder / ROW_FILE).read_bytes(), type=Row)
    except FileNotFoundError:
        return Row(folder.name)
    except (OSError, *UNDECODABLE) as error:
        raise RunError(
            f"{folder / ROW_FILE} can't be read: {excerpt(error)}. Remove it to repeat the problem."
        ) from error


def write_row(row: Row, folder: Path) -> None:
    """Keep a row. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / ROW_FILE, indented_json(row))


def natural(path: Path | str) -> tuple[object, ...]:
    """A key that sorts by the numbers in a name."""
    parts = re.split(r"(\d+)", str(path))
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
