"""What an ablation searches: search-space caches, tasks and problems, by the names that a configuration uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mctskernel.core.space import SearchSpace
from mctskernel.core.task_file import load_task
from mctskernel.experiments.ablation.configuration import AblationError, check_name
from mctskernel.experiments.synthetic_spaces import SYNTHETIC_SPACES
from mctskernel.problems.registry import is_problem, read_problem, write_problem
from mctskernel.profiling.spaces import read_space, space_name
from mctskernel.tasks.builtin import find_task

SYNTHETIC = "synthetic:"
"""Prefix of the name of a synthetic space (`mctskernel.experiments.synthetic_spaces`)."""

PLAIN = "plain:"  # prefix of the name of a task of `experiments/plain_suite`
PLAIN_SUITE = Path(__file__).parents[1] / "plain_suite"


@dataclass(frozen=True)
class Subject:
    """A search-space cache or a task; `source` is a file, a synthetic space's name, a folder or a problem."""

    name: str
    source: str
    is_task: bool = False

    def space(self) -> SearchSpace:
        """Return the search space, read once in each process. Raises SpaceError."""
        return _read_space(self.source)


def subjects_of(spaces: Iterable[str], tasks: Iterable[str]) -> tuple[Subject, ...]:
    """Find what a configuration searches. Raises AblationError and TaskError."""
    found = (
        *(subject for each in spaces for subject in _spaces(each)),
        *(subject for each in tasks for subject in _tasks(each)),
    )
    names = [subject.name for subject in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AblationError(f"Two spaces or tasks are called '{twice}'.")
    return found


def with_task_folder(subject: Subject, out: Path) -> Subject:
    """Read a benchmark's problem into a task folder below `out`; others stay as they are. Raises TaskError."""
    if not (subject.is_task and is_problem(subject.source)):
        return subject
    folder = out / subject.name
    if not folder.exists():
        write_problem(read_problem(Path(subject.source)), folder)
    return replace(subject, source=str(folder))


def _spaces(source: str) -> Iterator[Subject]:
    if source.startswith(SYNTHETIC):
        name = source.removeprefix(SYNTHETIC)
        check_name(name, tuple(SYNTHETIC_SPACES), "synthetic space")
        yield Subject(name, source)
        return
    path = Path(source)
    if not path.exists():
        beside = sorted(each.name for each in path.parent.glob("*")) if path.parent.is_dir() else []
        check_name(path.name, beside, f"search-space cache in {path.parent}")
    files = sorted((*path.glob("*.json"), *path.glob("*.json.gz"))) if path.is_dir() else [path]
    if not files:
        raise AblationError(f"{path} holds no search-space cache: no .json or .json.gz.")
    yield from (Subject(space_name(file), str(file)) for file in files)


def _tasks(source: str) -> Iterator[Subject]:
    """One task or problem, or all of a folder."""
    path = Path(source)
    is_one = is_problem(path) or (path / "task.toml").exists() or not path.is_dir()
    inside = () if is_one else sorted(path.iterdir())
    found = [str(each) for each in inside if is_problem(each) or (each / "task.toml").exists()]
    yield from map(_task, found or [source])


def _task(source: str) -> Subject:
    if is_problem(source):
        return Subject(Path(source).stem, source, is_task=True)
    if source.startswith(PLAIN):
        name = source.removeprefix(PLAIN)
        check_name(name, sorted(each.name for each in PLAIN_SUITE.iterdir()), "plain task")
        folder = PLAIN_SUITE / name
    else:
        folder = find_task(source)
    return Subject(load_task(folder).name, str(folder), is_task=True)


@cache
def _read_space(source: str) -> SearchSpace:
    if source.startswith(SYNTHETIC):
        return SYNTHETIC_SPACES[source.removeprefix(SYNTHETIC)]()
    return read_space(Path(source))
