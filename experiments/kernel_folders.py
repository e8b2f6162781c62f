"""Make folders of kernels whose times are known: from a kernel's tunables, from edits, or from a recorded run."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.edits.rule import Limits
from mctskernel.experiments.tunables import Space, combinations, with_tunables
from mctskernel.experiments.variants import LINES, TASK, Variant, code, read_variants, variants_of
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.view import View
from mctskernel.run import RunError, write_text

ATTEMPTS = 20
"""How many values of the tunables are looked at for each kernel that is wanted; most that can't run cost nothing."""

ORIGIN = "record.json"

Item = TypeVar("Item")


class HasKernel(Protocol):
    """Something to evaluate."""

    @property
    def kernel(self) -> Kernel:
        """The kernel."""


Try = TypeVar("Try", bound=HasKernel)


@dataclass(frozen=True)
class Wanted:
    """What to record of a task: `limit` kernels with a time from a space of tunables.

    No evaluation is started after `seconds`. An empty `family` means the task in its language.
    """

    kernel: Kernel
    space: Space
    limit: int
    seed: int = 0
    seconds: float = math.inf
    family: str = ""


def record(
    task: Task,
    wanted: Wanted,
    out: Path,
    executor: Executor,
    *,
    command: str = "",
    follow: Callable[[Variant], None] = lambda _: None,
) -> None:
    """Evaluate kernels of a task and write each down as soon as its result is known; continue an earlier recording.

    Raises RunError for a folder of another task or device, and TunableError for a tunable that isn't there.
    """
    ends = time.monotonic() + wanted.seconds
    folder = RecordedFolder(out, task, Origin(task.name, command, executor.fingerprint()), follow)

    def enough(in_flight: int) -> bool:
        return time.monotonic() >= ends or len(folder.timed) + in_flight >= wanted.limit

    for entry, evaluation in evaluated(executor, _by_tunables(wanted, folder), enough):
        folder.add(entry, evaluation, wanted.family)


def record_run(run: View, out: Path, limit: int, *, command: str = "") -> int:
    """Make a folder of at most `limit` of a run's measured kernels, spread over their times; says how many.

    Raises RunError.
    """
    run.refuse_recorded()
    task, manifest = run.folder.load_task(), run.manifest
    if (out / LINES).exists():
        raise RunError(f"{out} already holds variants: choose another --out.")
    found: dict[Hashable, tuple[Entry, Evaluation]] = {}
    for node in run.tree.nodes:
        if node.evaluation is not None and is_eligible(node.evaluation):
            entry = Entry(f"node {node.id}", Kernel(run.source(node.id), manifest.configuration.language))
            line = variants_of(task, entry.kernel, node.evaluation, name=entry.name)[0]
            found.setdefault(code(task, entry.kernel, line), (entry, node.evaluation))
    if not found:
        raise RunError(f"{run.folder.path} has no measured kernel to record.")
    folder = RecordedFolder(out, task, Origin(task.name, command, manifest.fingerprint))
    chosen = spread(found.values(), limit, lambda each: _log_time(each[1]))
    for entry, evaluation in chosen:
        folder.add(entry, evaluation)
    return len(chosen)


def spread(items: Iterable[Item], limit: int, size: Callable[[Item], float]) -> list[Item]:
    """At most `limit` items whose sizes lie as evenly as can be from the least to the greatest, in order."""
    rest = sorted(items, key=size)
    if len(rest) <= limit:
        return rest
    chosen: list[Item] = []
    for target in np.linspace(size(rest[0]), size(rest[-1]), limit):
        distances = [abs(size(each) - target) for each in rest]
        chosen.append(rest.pop(distances.index(min(distances))))
    return sorted(chosen, key=size)


def _log_time(evaluation: Evaluation) -> float:
    return math.fsum(math.log(timing.seconds) for timing in evaluation.timings)


def evaluated(
    executor: Executor, tries: Iterator[Try], enough: Callable[[int], bool]
) -> Iterator[tuple[Try, Evaluation]]:
    """Evaluate one try after another; `enough` says, by the number in flight, whether to start no more."""
    in_flight: dict[int, Try] = {}
    tickets = count()
    while True:
        while len(in_flight) < executor.capacity and not enough(len(in_flight)):
            entry = next(tries, None)
            if entry is None:
                break
            ticket = next(tickets)
            in_flight[ticket] = entry
            executor.submit(ticket, entry.kernel)
        if not in_flight:
            return
        for ticket, evaluation in executor.wait():
            yield in_flight.pop(ticket), evaluation


def _by_tunables(wanted: Wanted, folder: RecordedFolder) -> Iterator[Entry]:
    """The kernel as it is, then with other numbers."""
    task = folder.task
    limits = Limits(task, task.search_shapes)
    for values in combinations(wanted.kernel, wanted.space, ATTEMPTS * wanted.limit, wanted.seed):
        label = ", ".join(f"{name}={value}" for name, value in values.items())
        entry = Entry(label or "as it is", wanted.kernel, values)
        if limits.allow(entry.kernel) and not folder.holds(entry.kernel):
            yield entry


class Origin(msgspec.Struct, frozen=True):
    """record.json: where the times of a folder come from. `device` is a fingerprint."""

    task: str
    command: str
    device: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """A kernel of a folder: a text, and values of its tunables that are set in it."""

    name: str
    text: Kernel
    tunables: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Kernel:
        """The text with its tunables."""
        return with_tunables(self.text, self.tunables) if self.tunables else self.text


class RecordedFolder:
    """A folder of one task's kernels on one device, new or begun before. `timed` are those with a time.

    `follow` is called with each line that is added. Raises RunError for a folder of another task or device.
    """

    def __init__(
        self, path: Path, task: Task, origin: Origin, follow: Callable[[Variant], None] = lambda _: None
    ) -> None:
        self.task = task
        self.timed: dict[str, Entry] = {}
        self._path = path
        self._follow = follow
        self._identities: set[str] = set()
        self._codes: dict[Hashable, str] = {}
        self._open(origin)
        for variant in read_variants(path) if (path / LINES).exists() else ():
            text = (path / variant.source).read_text(encoding="utf-8")
            self._note(variant, Entry(variant.name, Kernel(text, variant.language), variant.tunables))

    def holds(self, kernel: Kernel) -> bool:
        """Whether a kernel was recorded, or failed."""
        return kernel.identity in self._identities

    def add(self, entry: Entry, evaluation: Evaluation, family: str = "") -> None:
        """Write down an evaluated kernel, on disk when this returns.

        One whose machine code is there already becomes a duplicate, without a time.
        """
        lines = self._lines(entry, evaluation, family)
        found = code(self.task, entry.kernel, lines[0])
        same = self._codes.get(found) if lines[0].outcome is Outcome.OK else None
        if same is not None:
            message = f"The machine code of '{same}', as far as counters show."
            lines = self._lines(
                entry, replace(evaluation, outcome=Outcome.DUPLICATE, message=message), family
            )
        source = self._path / lines[0].source
        if not source.exists():
            source.parent.mkdir(exist_ok=True)
            source.write_text(entry.text.source, encoding="utf-8")
        with (self._path / LINES).open("ab") as file:
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
        self._note(lines[0], entry)
        self._follow(lines[0])

    def _open(self, origin: Origin) -> None:
        path = self._path / ORIGIN
        if path.exists():
            before = msgspec.json.decode(path.read_bytes(), type=Origin)
            if (before.task, before.device) != (origin.task, origin.device):
                raise RunError(
                    f"{self._path} holds kernels of {before.task} on {before.device.get('gpu')} "
                    f"({before.device.get('device')}); times of another task or device need another folder."
                )
            return
        if self._path.exists() and any(self._path.iterdir()):
            raise RunError(
                f"{self._path} already holds something that was not recorded: choose another --out."
            )
        self._path.mkdir(parents=True, exist_ok=True)
        shutil.copytree(
            self.task.folder,
            self._path / TASK,
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
        write_text(path, msgspec.json.format(msgspec.json.encode(origin), indent=2).decode() + "\n")

    def _lines(self, entry: Entry, evaluation: Evaluation, family: str) -> tuple[Variant, ...]:
        return variants_of(
            self.task, entry.text, evaluation, name=entry.name, family=family, tunables=entry.tunables
        )

    def _note(self, variant: Variant, entry: Entry) -> None:
        self._identities.add(entry.kernel.identity)
        if variant.outcome is Outcome.OK:
            self._codes.setdefault(code(self.task, entry.kernel, variant), variant.name)
            self.timed.setdefault(entry.kernel.identity, entry)
