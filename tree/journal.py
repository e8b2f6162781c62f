"""The journal: events in a file, one JSON object a line, each in the file before the search goes on.

A killed process loses no line. A power cut may lose the last few, but no evaluation and no paid reply: those
are flushed to the disk, with all before them, before anybody hears of them.

The first line names the schema and its version. A last line without its end was being written when the
process died: it is dropped with a warning. Whatever else can't be read is an error with file and line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from mctskernel.tree.events import Event, decode, encode, is_costly
from mctskernel.tree.fold import apply
from mctskernel.tree.legality import TreeError
from mctskernel.tree.node import Tree

if sys.platform != "win32":
    import fcntl

SCHEMA = "mctskernel.journal"
SCHEMA_VERSION = 3
"""Version 1 had no predictions, 2 no factors. Both are read as they are, and become version 3 when appended to."""

OLDEST_VERSION = 1


class JournalError(Exception):
    """A journal that can't be read or written; the message is a sentence with the file and the line."""


class JournalWarning(UserWarning):
    """A torn last line was dropped."""


class EventLog(Protocol):
    """Where events are kept before they change the tree."""

    def append(self, event: Event) -> Event:
        """Keeps an event and returns it as it will be read again."""
        ...


class MemoryJournal:
    """The events of a search that isn't kept."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> Event:
        """Keeps an event and returns it as a journal on disk would give it back."""
        kept = decode(encode(event))
        self.events.append(kept)
        return kept


class Journal:
    """A journal open for appending, by one process at a time.

    With `durable` false nothing is flushed to the disk: every line outlives the process, not a power cut.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"{path} can't be opened: {error.strerror}.") from error
        try:
            self._lock()
            self._end = len(_whole_lines(path))
            os.ftruncate(self._file, self._end)
            if self._end == 0:
                self._write(_HEADER_LINE, flush=self._durable)
            else:
                self._migrate()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, event: Event) -> Event:
        """Writes an event and returns it as it will be read again.

        Raises JournalError when it can't be written; the journal then ends with the event before it.
        """
        line = encode(event)
        self._write(line + b"\n", flush=self._durable and is_costly(event))
        return decode(line)

    def close(self) -> None:
        """Lets another process append."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes, *, flush: bool) -> None:
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
            if flush:
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise JournalError(
                f"{self.path} can't be written: {error.strerror}. Everything before is kept."
            ) from error
        self._end += len(line)

    def _migrate(self) -> None:
        """Rewrite the header in its place, which every older one fills at least, so that older programs refuse."""
        try:
            length = os.pread(self._file, self._end, 0).index(b"\n")
            os.pwrite(self._file, _HEADER_LINE.rstrip(b"\n").ljust(length), 0)
        except OSError as error:
            raise JournalError(f"{self.path} can't be written: {error.strerror}.") from error

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"{self.path} is in use by another process.") from error


def read_tree(path: Path) -> Tree:
    """The tree that a journal's events make."""
    tree = Tree()
    for number, event in _numbered_events(path):
        try:
            apply(tree, event)
        except TreeError as error:
            raise JournalError(f"{path}, line {number}: {error}") from error
    return tree


def read_events(path: Path) -> Iterator[Event]:
    """The events of a journal, in order."""
    return (event for _, event in _numbered_events(path))


class _Header(msgspec.Struct, frozen=True):
    schema: str
    version: int


_HEADER_LINE = msgspec.json.encode(_Header(SCHEMA, SCHEMA_VERSION)) + b"\n"


def _numbered_events(path: Path) -> Iterator[tuple[int, Event]]:
    for number, line in enumerate(_whole_lines(path).split(b"\n")[1:-1], start=2):
        try:
            yield number, decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise JournalError(f"{path}, line {number}: this is no event: {error}.") from error


def _whole_lines(path: Path) -> bytes:
    """What precedes the end of the last whole line, the header checked; nothing if not even that is whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path} can't be read: {error.strerror}.") from error
    end = content.rfind(b"\n") + 1
    if end:
        _check_header(path, content[: content.index(b"\n")])
    elif not _HEADER_LINE.startswith(content):
        raise JournalError(f"{path} isn't a journal of mctskernel.")
    if content[end:]:
        warnings.warn(f"{path}: the last line is incomplete and was dropped.", JournalWarning, stacklevel=4)
    return content[:end]


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(f"{path}, line 1: this isn't a journal of mctskernel: {error}.") from error
    if header.schema != SCHEMA:
        raise JournalError(f"{path}, line 1: this is a '{header.schema}', not a journal of mctskernel.")
    if header.version > SCHEMA_VERSION:
        raise JournalError(
            f"{path}, line 1: schema version {header.version} is newer than this program, "
            f"which reads version {SCHEMA_VERSION}. Update mctskernel."
        )
    if header.version < OLDEST_VERSION:
        raise JournalError(
            f"{path}, line 1: schema version {header.version} is unknown; "
            f"this program reads versions {OLDEST_VERSION} to {SCHEMA_VERSION}."
        )
