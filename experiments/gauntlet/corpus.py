"""The gauntlet's corpus, and how it is read.

    corpus/
        cuda/
            cheats/     entries.toml, and a source for each of its entries
            honest/     the same
        triton/         the same
        pytorch/        PyTorch modules, and the modules that they stand in for in references/
        tasks/          task folders of its own

A cheat claims a speed or a correctness that it doesn't have; an honest entry is unusual and right. `entries.toml`
has a table for each:

    [skips_the_tail]                    # the name of its source, without the suffix
    trick = "Leaves out the elements behind the last whole block."
    task = "softmax"                    # a built-in task, or a folder of tasks/; of a module, a file of references/
    guards = ["poisoned outputs"]       # cheats alone: whichever of these notices
    where = "both"                      # optional: where it shows, on the "model", on a "gpu" or on "both"

An honest entry says under `kernel`, in place of `trick`, what is unusual about it. For modules the model is the CPU,
`guards` may be outcomes too, or "no gain" where a module may pass as long as it claims no speed-up, and
`own_kernels = true` asks for a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from mctskernel.core.documents import DocumentError, read_toml
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task import TaskError
from mctskernel.core.user_errors import MisuseError
from mctskernel.tasks.builtin import builtin_tasks

CORPUS = Path(__file__).parents[3] / "tests" / "gauntlet"
"""The corpus of a checkout; it is no part of the installed package."""

BOTH, NO_GAIN, PYTORCH = "both", "no gain", "pytorch"
_GUARDS = {*map(str, Guard), *map(str, Outcome), NO_GAIN}


@dataclass(frozen=True)
class Entry:
    """A kernel or module (`kind`: its language or `pytorch`), its trick, and the `guards` a cheat should meet."""

    name: str
    kind: str
    honest: bool
    text: str
    task: Path
    file: Path
    guards: tuple[str, ...] = ()
    where: str = BOTH
    own_kernels: bool = False

    @property
    def label(self) -> str:
        """The entry's place in the corpus: `cuda/cheats/skips_the_tail`."""
        return f"{self.kind}/{self.file.parent.name}/{self.name}"

    @property
    def kernel(self) -> Kernel:
        """Its source, as it was written: a cheat may hide in line ends and odd bytes."""
        return Kernel(self.file.read_bytes().decode("utf-8", "surrogateescape"), Language(self.kind))

    def shows_on(self, device: str) -> bool:
        return self.where in (BOTH, device)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    trick: str = ""
    kernel: str = ""
    guards: tuple[str, ...] = ()
    where: Literal["model", "gpu", "both"] = "both"
    own_kernels: bool = False


def read_corpus(folder: Path = CORPUS, kinds: Sequence[str] = SOURCE_LANGUAGES) -> list[Entry]:
    """Read every entry of some kinds, cheats first, by kind and name. Raises MisuseError."""
    if not folder.is_dir():
        raise MisuseError(f"There is no corpus at {folder}: run this from a checkout, or give --corpus.")
    entries = [
        entry
        for part in ("cheats", "honest")
        for kind in kinds
        if (folder / kind / part / "entries.toml").is_file()
        for entry in _read(folder / kind / part / "entries.toml", kind)
    ]
    if not entries:
        raise MisuseError(f"{folder} holds no gauntlet: there is no */cheats/entries.toml in it.")
    return entries


def _read(where: Path, kind: str) -> Iterator[Entry]:
    suffix = ".py" if kind == PYTORCH else Language(kind).suffix
    try:
        document = read_toml(where)
    except DocumentError as error:
        raise MisuseError(f"{where} {error}.") from error
    described = {f"{name}{suffix}" for name in document}
    found = {file.name for file in where.parent.iterdir() if file.suffix == suffix}
    if described != found:
        raise MisuseError(f"{where} and its folder differ in {', '.join(sorted(described ^ found))}.")
    honest = where.parent.name == "honest"
    for name, content in sorted(document.items()):
        try:
            table = msgspec.convert(content, _Table)
        except msgspec.ValidationError as error:
            raise MisuseError(f"{where}: [{name}]: {error}.") from error
        given = (bool(table.trick), bool(table.guards), bool(table.kernel))
        if given != (not honest, not honest, honest) or not _GUARDS.issuperset(table.guards):
            raise MisuseError(f"{where}: [{name}] needs a trick and known guards; if it is honest, a kernel.")
        yield Entry(
            name,
            kind,
            honest,
            table.trick or table.kernel,
            _task(table.task, where, kind),
            where.with_name(f"{name}{suffix}"),
            table.guards,
            table.where,
            table.own_kernels,
        )


def _task(name: str, where: Path, kind: str) -> Path:
    """The folder of a task, or the file of a reference."""
    if kind == PYTORCH:
        return where.parents[1] / "references" / f"{name}.py"
    own = where.parents[2] / "tasks" / name
    folder = own if (own / "task.toml").is_file() else builtin_tasks().get(name)
    if folder is None:
        raise TaskError(f"{where} names the task '{name}', which is neither built in nor in {own.parent}.")
    return folder
