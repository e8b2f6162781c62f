"""The gauntlet's corpus, and how it is read.

    corpus/
        cuda/
            cheats/     entries.toml, and a source for each of its entries
            honest/     the same
        triton/         the same
        tasks/          task folders of its own

A cheat claims a speed or a correctness that it doesn't have; an honest entry is unusual and right. `entries.toml`
has a table for each:

    [skips_the_tail]                    # the name of its source, without the suffix
    trick = "Leaves out the elements behind the last whole block."
    task = "softmax"                    # a built-in task, or a folder of tasks/
    guards = ["poisoned outputs"]       # cheats alone: whichever of these notices
    where = "both"                      # optional: where it shows, on the "model", on a "gpu" or on "both"

An honest entry says under `kernel`, in place of `trick`, what is unusual about it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from mctskernel.core.evaluation import Guard
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task import TaskError
from mctskernel.core.user_errors import MisuseError
from mctskernel.tasks.builtin import builtin_tasks

CORPUS = Path(__file__).parents[3] / "tests" / "gauntlet"
"""The corpus of a checkout; it is no part of the installed package."""

Place = Literal["model", "gpu", "both"]
BOTH: Place = "both"
FOLDERS = {False: "cheats", True: "honest"}


class CorpusError(MisuseError, ValueError):
    """A corpus that can't be read; the message is a sentence that names the file and what is wrong."""


@dataclass(frozen=True)
class Entry:
    """One kernel of the corpus; `text` is its trick, or what is unusual about an honest one.

    `guards` are those that a cheat is expected to meet, any of them; `where` is `model`, `gpu` or `both`.
    """

    name: str
    language: Language
    honest: bool
    text: str
    task: Path
    file: Path
    guards: tuple[Guard, ...] = ()
    where: Place = BOTH

    @property
    def label(self) -> str:
        """The entry's place in the corpus: `cuda/cheats/skips_the_tail`."""
        return f"{self.language}/{FOLDERS[self.honest]}/{self.name}"

    @property
    def kernel(self) -> Kernel:
        """Its source, as it was written: a cheat may hide in line ends and odd bytes."""
        return Kernel(self.file.read_bytes().decode("utf-8", "surrogateescape"), self.language)

    def shows_on(self, device: str) -> bool:
        return self.where in (BOTH, device)


class _CheatTable(msgspec.Struct, forbid_unknown_fields=True):
    text: str = msgspec.field(name="trick")
    task: str
    guards: tuple[Guard, ...]
    where: Place = BOTH


class _HonestTable(msgspec.Struct, forbid_unknown_fields=True):
    text: str = msgspec.field(name="kernel")
    task: str
    where: Place = BOTH


def read_corpus(folder: Path = CORPUS) -> list[Entry]:
    """Read every entry, cheats first, by language and name. Raises CorpusError."""
    if not folder.is_dir():
        raise CorpusError(f"There is no corpus at {folder}: run this from a checkout, or give --corpus.")
    entries = [
        entry
        for honest in (False, True)
        for language in SOURCE_LANGUAGES
        for entry in _read(folder, language, honest=honest)
    ]
    if not entries:
        raise CorpusError(f"{folder} holds no gauntlet: there is no */cheats/entries.toml in it.")
    return entries


def _read(corpus: Path, language: Language, *, honest: bool) -> Iterator[Entry]:
    folder = corpus / language / FOLDERS[honest]
    where = folder / "entries.toml"
    if not where.is_file():
        return
    try:
        document = tomllib.loads(where.read_text("utf-8"))
    except ValueError as error:
        raise CorpusError(f"{where} is not valid TOML: {error}.") from error
    described = {f"{name}{language.suffix}" for name in document}
    found = {file.name for file in folder.iterdir() if file.suffix == language.suffix}
    if described != found:
        raise CorpusError(f"{where} and its folder differ in {', '.join(sorted(described ^ found))}.")
    for name, table in sorted(document.items()):
        yield _entry(name, table, where, language, honest=honest)


def _entry(name: str, table: Mapping[str, Any], where: Path, language: Language, *, honest: bool) -> Entry:
    kind: type[_HonestTable | _CheatTable] = _HonestTable if honest else _CheatTable
    try:
        read = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise CorpusError(f"{where}: [{name}]: {error}.") from error
    file = where.parent / f"{name}{language.suffix}"
    guards = read.guards if isinstance(read, _CheatTable) else ()
    return Entry(name, language, honest, read.text, _task(read.task, where), file, guards, read.where)


def _task(name: str, where: Path) -> Path:
    own = where.parents[2] / "tasks" / name
    folder = own if (own / "task.toml").is_file() else builtin_tasks().get(name)
    if folder is None:
        raise TaskError(f"{where} names the task '{name}', which is neither built in nor in {own.parent}.")
    return folder
