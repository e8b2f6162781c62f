"""A folder of variants while it is being made: what is in it, what may be added, and what it says of itself."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.run import RunError, write_text
from mctskernel.tunables import with_tunables
from mctskernel.variants import LINES, TASK, Variant, code, read_variants, variants_of

ORIGIN = "record.json"


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

    `follow` is told of each line that is added. Raises RunError for a folder of another task or device.
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
        """Write down a kernel that was judged, on disk when this returns.

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

    def write_readme(self) -> None:
        """Say what is here, where it was measured and how to make it again."""
        origin = msgspec.json.decode((self._path / ORIGIN).read_bytes(), type=Origin)
        lines = list(read_variants(self._path)) if (self._path / LINES).exists() else []
        timed = Counter(each.family for each in lines if each.outcome is Outcome.OK)
        failed = Counter(str(each.outcome) for each in lines if each.outcome is not Outcome.OK)
        text = [
            f"# Kernels of {origin.task}, timed on {origin.device.get('gpu', 'an unknown GPU')}",
            "",
            "| family | what | kernels with a time |",
            "|---|---|---|",
            *(f"| {family} | {self.task.summary} | {count} |" for family, count in timed.items()),
            "",
            f"Without a time: {', '.join(f'{count} {outcome}' for outcome, count in failed.items()) or 'none'}.",
            "",
            f"Made by `{origin.command}` on this device:",
            "",
            *(f"- {name}: {value}" for name, value in origin.device.items()),
            "",
        ]
        write_text(self._path / "README.md", "\n".join(text))

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
