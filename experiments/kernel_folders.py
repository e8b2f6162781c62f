"""Make folders of kernels whose times are known, from a kernel's tunables."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.edits.rule import Limits
from mctskernel.experiments.tunables import Space, combinations, with_tunables
from mctskernel.experiments.variants import LINES, TASK, Variant, code, read_variants, variants_of
from mctskernel.run import RunError, write_text

ATTEMPTS = 20
"""How many values of the tunables are looked at for each kernel that is wanted; most that can't run cost nothing."""

ORIGIN = "record.json"

Item = TypeVar("Item")


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
    folder = RecordedFolder(out, task, Origin(task.name, command, executor.fingerprint()))

    def enough(in_flight: int) -> bool:
        return time.monotonic() >= ends or folder.timed + in_flight >= wanted.limit

    for values, evaluation in evaluated(executor, _by_tunables(wanted, folder), enough):
        name = ", ".join(f"{name}={value}" for name, value in values.items()) or "as it is"
        follow(folder.add(name, wanted.kernel, evaluation, tunables=values, family=wanted.family))


def evaluated(
    executor: Executor, tries: Iterator[tuple[Item, Kernel]], enough: Callable[[int], bool]
) -> Iterator[tuple[Item, Evaluation]]:
    """Evaluate one kernel after another; `enough` says, by the number in flight, whether to start no more."""
    in_flight: dict[int, Item] = {}
    tickets = count()
    while True:
        while len(in_flight) < executor.capacity and not enough(len(in_flight)):
            item, kernel = next(tries, (None, None))
            if item is None or kernel is None:
                break
            ticket = next(tickets)
            in_flight[ticket] = item
            executor.submit(ticket, kernel)
        if not in_flight:
            return
        for ticket, evaluation in executor.wait():
            yield in_flight.pop(ticket), evaluation


def _by_tunables(wanted: Wanted, folder: RecordedFolder) -> Iterator[tuple[dict[str, int], Kernel]]:
    """The kernel as it is, then with other numbers."""
    limits = Limits(folder.task, folder.task.search_shapes)
    for values in combinations(wanted.kernel, wanted.space, ATTEMPTS * wanted.limit, wanted.seed):
        kernel = with_tunables(wanted.kernel, values)
        if limits.allow(kernel) and kernel.identity not in folder.identities:
            yield values, kernel


class Origin(msgspec.Struct, frozen=True):
    """record.json: where the times of a folder come from. `device` is a fingerprint."""

    task: str
    command: str
    device: dict[str, str]


class RecordedFolder:
    """A folder of one task's kernels on one device, new or begun before; `timed` of them have a time.

    `identities` are those of all its kernels, failures included. Raises RunError for a folder of another task or
    device.
    """

    def __init__(self, path: Path, task: Task, origin: Origin) -> None:
        self.task = task
        self.timed = 0
        self.identities: set[str] = set()
        self._path = path
        self._codes: dict[Hashable, str] = {}
        self._open(origin)
        for variant in read_variants(path) if (path / LINES).exists() else ():
            text = (path / variant.source).read_text(encoding="utf-8")
            self._note(variant, with_tunables(Kernel(text, variant.language), variant.tunables))

    def add(
        self,
        name: str,
        text: Kernel,
        evaluation: Evaluation,
        *,
        tunables: Mapping[str, int] | None = None,
        family: str = "",
    ) -> Variant:
        """Write down an evaluated kernel, a text with tunables set in it; on disk when this returns.

        One whose machine code is there already becomes a duplicate.
        """
        kernel = with_tunables(text, tunables or {})
        lines = variants_of(self.task, text, evaluation, name=name, family=family, tunables=tunables)
        same = self._codes.get(code(self.task, kernel, lines[0]))
        if same is not None and lines[0].outcome is Outcome.OK:
            message = f"The machine code of '{same}', as far as counters show."
            again = {"outcome": Outcome.DUPLICATE, "message": message}
            lines = tuple(msgspec.structs.replace(line, **again) for line in lines)
        source = self._path / lines[0].source
        if not source.exists():
            source.parent.mkdir(exist_ok=True)
            source.write_text(text.source, encoding="utf-8")
        with (self._path / LINES).open("ab") as file:
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
        self._note(lines[0], kernel)
        return lines[0]

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
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(self.task.folder, self._path / TASK, ignore=unwanted, dirs_exist_ok=True)
        write_text(path, msgspec.json.format(msgspec.json.encode(origin), indent=2).decode() + "\n")

    def _note(self, variant: Variant, kernel: Kernel) -> None:
        is_new = kernel.identity not in self.identities
        self.identities.add(kernel.identity)
        if variant.outcome is Outcome.OK:
            self._codes.setdefault(code(self.task, kernel, variant), variant.name)
            self.timed += is_new
