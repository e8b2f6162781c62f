"""What an ablation searches: recorded spaces, recorded kernels and tasks, by what a configuration calls them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mctskernel.core.space import SearchSpace
from mctskernel.core.task_file import load_task
from mctskernel.experiments.ablation.names import AblationError, check_name
from mctskernel.experiments.made_spaces import makers
from mctskernel.experiments.strategies.jobs import space_files
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace, read_spaces
from mctskernel.profiling.spaces import read_space, space_name
from mctskernel.tasks import find_task
from mctskernel.variants import LINES

MADE = "made:"
"""Before the name of a made-up space."""


@dataclass(frozen=True)
class SpaceSubject:
    """A recorded space, in a file or made up."""

    name: str
    source: str

    def load(self) -> SearchSpace:
        """The space, read once in each process as long as its file is the same. Raises SpaceError."""
        return _space(_Version.of(self.source))


@dataclass(frozen=True)
class KernelsSubject:
    """Kernels that were all timed: those of a run, or a family of a folder of variants."""

    name: str
    source: str

    def load(self) -> RecordedSpace:
        """The kernels, read once in each process. Raises RunError, JournalError and VariantError."""
        return next(each for each in _recorded(self.source) if each.name == self.name)


@dataclass(frozen=True)
class TaskSubject:
    """A task, of which every trial is a run."""

    name: str
    source: str

    @property
    def folder(self) -> Path:
        """The folder of the task."""
        return Path(self.source)


Subject = SpaceSubject | KernelsSubject | TaskSubject


def subjects_of(spaces: Iterable[str], tasks: Iterable[str]) -> tuple[Subject, ...]:
    """What a configuration searches. Raises AblationError, TaskError, and what reading recorded kernels raises."""
    found = (*(subject for each in spaces for subject in _of_spaces(each)), *map(_of_task, tasks))
    names = [subject.name for subject in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AblationError(f"'{twice}' is searched twice, or two things are called so.")
    return found


def described(subject: Subject) -> tuple[str, int]:
    """A digest of what a subject is, and how many configurations or kernels it has; 0 for a task."""
    match subject:
        case SpaceSubject():
            space = subject.load()
            return _digest(map(repr, (space.parameters, *space.entries))), len(space.entries)
        case KernelsSubject():
            kernels = subject.load()
            return _digest(f"{each} {kernels.seconds.get(each)}" for each in kernels.evaluations), len(
                kernels.evaluations
            )
        case TaskSubject():
            texts = (file for file in sorted(subject.folder.glob("*")) if file.is_file())
            return _digest(
                f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in texts
            ), 0


def _of_spaces(source: str) -> Iterator[Subject]:
    if source.startswith(MADE):
        name = source.removeprefix(MADE)
        check_name(name, makers(), "made-up space")
        yield SpaceSubject(name, source)
        return
    path = Path(source)
    if not path.exists():
        beside = sorted(each.name for each in path.parent.glob("*")) if path.parent.is_dir() else []
        check_name(path.name, beside, f"file of a space in {path.parent}")
    recordings = [each for each in (path, *sorted(path.glob("*/"))) if _holds_kernels(each)]
    if recordings:
        yield from (
            KernelsSubject(each.name, str(folder)) for folder in recordings for each in _recorded(str(folder))
        )
        return
    files = space_files([path])
    if not files:
        raise AblationError(f"{path} holds no recorded space: no .json or .json.gz, {LINES} or run.json.")
    yield from (SpaceSubject(space_name(file), str(file)) for file in files)


def _holds_kernels(folder: Path) -> bool:
    return (folder / LINES).is_file() or (folder / "run.json").is_file()


def _of_task(source: str) -> TaskSubject:
    folder = find_task(source)
    return TaskSubject(load_task(folder).name, str(folder))


@dataclass(frozen=True)
class _Version:
    """Where a space comes from: a file that was written again is another one."""

    source: str
    written: int

    @classmethod
    def of(cls, source: str) -> _Version:
        return cls(source, 0 if source.startswith(MADE) else Path(source).stat().st_mtime_ns)


@cache
def _space(version: _Version) -> SearchSpace:
    if version.source.startswith(MADE):
        return makers()[version.source.removeprefix(MADE)]()
    return read_space(Path(version.source))


@cache
def _recorded(source: str) -> tuple[RecordedSpace, ...]:
    return tuple(read_spaces(Path(source)))


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]
