"""Memory across runs: a small SQLite database of what kinds of edits did, and snapshots of it.

Each run keeps its own rows, so that remembering it again replaces them and forgetting it takes them away.
`docs/memory.md` describes what is kept and what a search does with it.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.edit import Experience, kind_of
from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import BadRunError
from mctskernel.profiling.reward import Gain, gain_of, is_eligible
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Tree

SCHEMA = "mctskernel.memory"
SCHEMA_VERSION = 1

RECALLED = 2000
"""Kinds of edits that are recalled at the most, the most tried: models call the same edit by many titles."""

BUSY_SECONDS = 10.0
"""How long to wait for another process that writes."""

SNAPSHOT_SUFFIX = ".json"

_APPLICATION_ID = 0x6D637473


class MemoryUnusableError(BadRunError, RuntimeError):
    """A memory that can't be read or written; the message is a sentence with the file."""


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experience, and whether its gains were measured or modelled, which are never added up."""

    source: Source
    experience: Experience


class Snapshot(msgspec.Struct, frozen=True):
    """What was remembered at one moment: the content of an exported memory and of a run's memory.json."""

    experiences: tuple[Remembered, ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class RememberedRun:
    """A run in the memory. `remembered` is when, in ISO 8601; `tried` counts its edits."""

    id: str
    task: str
    language: str
    architecture: str
    source: str
    remembered: str
    tried: int


def default_path() -> Path:
    """`mctskernel/memory.sqlite` in the user's data folder, as the XDG Base Directory Specification has it."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "mctskernel" / "memory.sqlite"


class Memory:
    """An open memory; `open_memory` makes it. Every call is a transaction of its own; all raise MemoryUnusableError."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def remember(self, identity: str, task: str, source: Source, learnt: tuple[Experience, ...]) -> int:
        """Keep what a run taught in place of what was kept of it before. Returns how many of its edits were counted.

        Zero where a run teaches nothing (`lessons`).
        """
        if not learnt:
            return 0
        language, architecture = learnt[0].language, learnt[0].architecture
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as cursor:
            cursor.execute("DELETE FROM run WHERE id = ?", (identity,))
            row = (identity, task, language, architecture, source.value, now)
            cursor.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?)", row)
            for each in learnt:
                kind = (each.category, each.title, each.bottleneck)
                counts = (each.tried, each.failed, each.improved, each.log_gain)
                cursor.execute(
                    "INSERT INTO experience VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (identity, *kind, *counts)
                )
        return sum(each.tried for each in learnt)

    def recall(self, language: str, architecture: str, source: Source) -> tuple[Experience, ...]:
        """What kinds of edits did to kernels of a language on an architecture, the most tried first."""
        found = self.everything(language, architecture, source)
        return tuple(each.experience for each in found[:RECALLED])

    def everything(
        self, language: str | None = None, architecture: str | None = None, source: Source | None = None
    ) -> tuple[Remembered, ...]:
        """All experiences, added up over runs, the most tried first; None stands for any."""
        chosen = {"language": language, "architecture": architecture, "source": source}
        with _sentences(self.path):
            rows = self._connection.execute(_SUMS, chosen).fetchall()
            return tuple(_remembered(row) for row in rows)

    def runs(self) -> tuple[RememberedRun, ...]:
        """The runs that are remembered, the latest first."""
        with _sentences(self.path):
            return tuple(RememberedRun(*row) for row in self._connection.execute(_RUNS).fetchall())

    def forget(self, runs: Iterable[str]) -> int:
        """Forget runs by their ids. Returns how many of them were there."""
        with self._transaction() as cursor:
            return sum(cursor.execute("DELETE FROM run WHERE id = ?", (each,)).rowcount for each in runs)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with _sentences(self.path), self._connection:
            # At once, so that it waits for another writer here and not where waiting is a deadlock.
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection.cursor()


@contextmanager
def open_memory(path: Path) -> Iterator[Memory]:
    """Open a memory, made if there is none; several processes may do so at once. Raises MemoryUnusableError."""
    with _sentences(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _prepare(path, connection)
            yield Memory(path, connection)
        finally:
            connection.close()


def lessons(
    tree: Tree, names: frozenset[str], language: Language, architecture: str
) -> tuple[Experience, ...]:
    """What a run taught: one experience for each kind of edit and bottleneck, in order of discovery.

    `names` are the task's own. Nothing from search-space caches, whose parameters mean nothing elsewhere. An edit of a
    kernel without a valid time isn't counted; one whose own kernel has none, quarantined ones included, has failed.
    """
    if language is Language.CONFIGURATION:
        return ()
    gains: dict[tuple[str, str, str], list[Gain | None]] = {}
    for edit, bottleneck, gain in _tried(tree):
        kind = (str(edit.category), kind_of(edit.title, names), bottleneck)
        gains.setdefault(kind, []).append(gain)
    return tuple(
        Experience(
            *kind,
            language.value,
            architecture,
            tried=len(found),
            failed=found.count(None),
            improved=sum(each is not None and each.is_certain for each in found),
            log_gain=statistics.fmean([each.log for each in found if each is not None] or [0.0]),
        )
        for kind, found in gains.items()
    )


def _tried(tree: Tree) -> Iterator[tuple[EditRecord, str, Gain | None]]:
    """Each edit that was evaluated, what bound the kernel before it, and its gain; None for a failure."""
    for parent in tree.nodes:
        before = parent.evaluation if parent.children else None
        if before is None or not is_eligible(before):
            continue
        for child in map(tree.nodes.__getitem__, parent.children):
            after = child.evaluation
            if after is None or child.edit is None:
                continue
            gain = gain_of(after, before)
            if gain is None and is_eligible(after):
                continue  # timed at other shapes: nothing can be said
            yield parent.edits[child.edit], _bottleneck(before), gain


def _bottleneck(evaluation: Evaluation) -> str:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    return str(causes[0].bottleneck) if causes else ""


def take_snapshot(
    path: Path, language: Language, architecture: str, source: Source
) -> tuple[Experience, ...]:
    """What is known of a language on an architecture, from a database or, if `path` ends in .json, from a snapshot.

    Nothing if there is no database yet. Raises MemoryUnusableError.
    """
    if path.suffix == SNAPSHOT_SUFFIX:
        wanted = (source, language.value, architecture)
        found = [
            each.experience
            for each in read_snapshot(path).experiences
            if (each.source, each.experience.language, each.experience.architecture) == wanted
        ]
        return tuple(found[:RECALLED])
    if not path.exists():
        return ()
    with open_memory(path) as memory:
        return memory.recall(language.value, architecture, source)


def encode_snapshot(experiences: Iterable[Remembered]) -> str:
    """The text of a snapshot, JSON that `read_snapshot` reads."""
    return msgspec.json.format(msgspec.json.encode(Snapshot(tuple(experiences)))).decode() + "\n"


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot. Raises MemoryUnusableError."""
    with _sentences(path):
        try:
            snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
        except UNDECODABLE as error:
            raise MemoryUnusableError(f"{path} is no exported memory: {excerpt(error)}.") from error
    if snapshot.schema != SCHEMA or snapshot.schema_version > SCHEMA_VERSION:
        raise MemoryUnusableError(
            f"{path} is {snapshot.schema} version {snapshot.schema_version}; "
            f"this program reads {SCHEMA} up to version {SCHEMA_VERSION}."
        )
    return snapshot


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Make the tables of a new database; refuse one that is another program's or of a newer version."""
    connection.execute("PRAGMA foreign_keys = ON")
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have been faster.
            if _pragma(connection, "application_id") != _APPLICATION_ID:
                _create(path, connection)
        with suppress(sqlite3.OperationalError):
            # Readers then don't wait for a writer; without it, or where another process reads already, they do.
            connection.execute("PRAGMA journal_mode = WAL")
    version = _pragma(connection, "user_version")
    if version > SCHEMA_VERSION:
        raise MemoryUnusableError(
            f"{path} has schema version {version}; this program reads up to {SCHEMA_VERSION}. Update mctskernel."
        )


def _create(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise MemoryUnusableError(f"{path} is another program's database, not a memory of mctskernel.")
    for statement in _TABLES:
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _remembered(row: tuple[Any, ...]) -> Remembered:
    source, category, title, bottleneck, language, architecture, tried, failed, improved, log_gains = row
    if not all(isinstance(number, int) for number in (tried, failed, improved)):
        raise sqlite3.DatabaseError("a count in it is no whole number")
    mean = log_gains / (tried - failed) if tried > failed else 0.0
    counts = (tried, failed, improved)
    experience = Experience(category, title, bottleneck, language, architecture, *counts, mean)
    return Remembered(Source(source), experience)


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite quotes a damaged table in what it complains of, which Python then can't read.
        raise MemoryUnusableError(f"The memory {path} can't be used: {error}.") from error
    except OSError as error:
        raise MemoryUnusableError(f"The memory {path} can't be used: {error.strerror or error}.") from error


_TABLES = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
    """CREATE TABLE run (
        id TEXT PRIMARY KEY,
        task TEXT NOT NULL,
        language TEXT NOT NULL,
        architecture TEXT NOT NULL,
        source TEXT NOT NULL,
        remembered TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE experience (
        run TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
        category TEXT NOT NULL,
        title TEXT NOT NULL,
        bottleneck TEXT NOT NULL,
        tried INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        improved INTEGER NOT NULL,
        log_gain REAL NOT NULL,
        PRIMARY KEY (run, category, title, bottleneck)
    ) WITHOUT ROWID""",
)

_SUMS = """
    SELECT source, category, title, bottleneck, language, architecture,
           sum(tried), sum(failed), sum(improved), total(log_gain * (tried - failed))
    FROM experience JOIN run ON run.id = experience.run
    WHERE (:language IS NULL OR language = :language)
      AND (:architecture IS NULL OR architecture = :architecture)
      AND (:source IS NULL OR source = :source)
    GROUP BY source, language, architecture, category, title, bottleneck
    ORDER BY sum(tried) DESC, source, language, architecture, category, title, bottleneck
"""

_RUNS = """
    SELECT id, task, language, architecture, source, remembered,
           (SELECT coalesce(sum(tried), 0) FROM experience WHERE run = run.id)
    FROM run ORDER BY remembered DESC, id
"""
