"""The journal: events in a file, one JSON object a line, each written before it changes the tree.

A killed process loses no line. A power cut may lose the last few, but no evaluation and no paid reply: those are
flushed to the disk, with everything before them, before the search goes on.

The first line names the schema and its version. A last line without its newline was being written when the process
died; it is dropped with a warning. So are damaged lines at the end, such as a power cut leaves, which the next append
moves to a file beside the journal. Anything else that can't be read is an error with file and line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import msgspec

from mctskernel.core.disk import remedy
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.user_errors import RunError
from mctskernel.tree.events import Event, decode, encode_and_decode, is_costly
from mctskernel.tree.node import Tree
from mctskernel.tree.replay import TreeError, apply

if sys.platform != "win32":
    import fcntl

SCHEMA = "mctskernel.journal"
SCHEMA_VERSION = 6


class JournalWarning(UserWarning):
    """Incomplete or damaged lines at the end were dropped."""


class EventLog(Protocol):
    """Where events are kept before they change the tree."""

    def append(self, event: Event) -> Event:
        """Keep an event and return it as it will be read again."""


class MemoryJournal:
    """The events of a search that isn't saved."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> Event:
        _, kept = encode_and_decode(event)
        self.events.append(kept)
        return kept


class Journal:
    """A journal open for appending, by one process at a time.

    With `durable` false nothing is flushed to the disk: every line outlives the process, not a power cut.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path.absolute()
        self._durable = durable
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"{path} can't be opened: {error.strerror}.") from error
        try:
            self._lock()
            self._end = _end_of_events(path)
            self._drop_damaged()
            if self._end == 0:
                self._write(_HEADER_LINE, flush=self._durable)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, event: Event) -> Event:
        """Write an event and return it as it will be read again. Raises RunError, the event then being absent."""
        line, kept = encode_and_decode(event)
        self._write(line + b"\n", flush=self._durable and is_costly(event))
        return kept

    def close(self) -> None:
        """Let another process append."""
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
        except BaseException as error:
            # An interrupt too: the next line begins here, and must not leave half of this one behind it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self._end += len(line)

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"{self.path} can't be written: {error.strerror}. {remedy(error, self.path.parent)}")

    def _drop_damaged(self) -> None:
        """Cut off what isn't part of the tree; complete lines of it are kept beside the journal."""
        try:
            damaged = os.pread(self._file, os.fstat(self._file).st_size - self._end, self._end)
            if b"\n" in damaged:
                with self.path.with_name(f"{self.path.name}.damaged").open("ab") as file:
                    file.write(damaged)
            os.ftruncate(self._file, self._end)
        except OSError as error:
            raise self._unwritable(error) from error

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"{self.path} is in use by another process.") from error


def is_being_written(path: Path) -> bool:
    """Return whether a process has the journal open for appending. Finding out takes its lock for a moment."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def read_tree(path: Path) -> Tree:
    """Build the tree that a journal's events make. Raises RunError."""
    tree = Tree()
    for number, line in _lines(path):
        _applied(tree, line, path, number)
    return tree


def read_events(path: Path) -> Iterator[Event]:
    """Read the events of a journal, in order. Raises RunError."""
    for number, line in _lines(path):
        yield _event(line, path, number)


def check_header(path: Path, line: bytes) -> None:
    """Raise RunError unless the first line of a journal, without its newline, has the current version."""
    try:
        header = msgspec.json.decode(line, type=_Header)
    except UNDECODABLE as error:
        raise RunError(f"{path}, line 1: this isn't a journal of mctskernel: {error}.") from error
    if header.schema != SCHEMA:
        raise RunError(f"{path}, line 1: this is a '{header.schema}', not a journal of mctskernel.")
    if header.version != SCHEMA_VERSION:
        raise RunError(
            f"{path}, line 1: the journal has schema version {header.version}; this mctskernel reads only version "
            f"{SCHEMA_VERSION}. Use the version of mctskernel that wrote it, or begin a new run."
        )


def _applied(tree: Tree, line: bytes, path: Path, number: int) -> Event:
    event = _event(line, path, number)
    try:
        apply(tree, event)
    except TreeError as error:
        raise RunError(f"{path}, line {number}: {error}") from error
    return event


def _event(line: bytes, path: Path, number: int) -> Event:
    try:
        return decode(line)
    except UNDECODABLE as error:
        raise RunError(f"{path}, line {number}: this is no event: {excerpt(error)}.") from error


class _Header(msgspec.Struct, frozen=True):
    schema: str
    version: int


_HEADER_LINE = msgspec.json.encode(_Header(SCHEMA, SCHEMA_VERSION)) + b"\n"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The complete lines after the header, which is checked, each with its number."""
    end = _end_of_events(path)
    with _opened(path) as file:
        offset = len(file.readline())
        for number, line in enumerate(file, start=2):
            if offset >= end:
                break
            yield number, line
            offset += len(line)


def _end_of_events(path: Path) -> int:
    """Bytes up to the end of the last line that is complete and an event, 0 without a header, which is checked."""
    with _opened(path) as file:
        header, rest = file.readline(), file.read()
    if not header.endswith(b"\n"):
        if not _HEADER_LINE.startswith(header):
            raise RunError(f"{path} isn't a journal of mctskernel.")
        complete, end = b"", 0
    else:
        check_header(path, header[:-1])
        complete = rest[: rest.rfind(b"\n") + 1]
        while complete and not _is_event(complete[complete.rfind(b"\n", 0, -1) + 1 :]):
            complete = complete[: complete.rfind(b"\n", 0, -1) + 1]
        end = len(header) + len(complete)
    if (dropped := len(header) + len(rest) - end) > 0:
        what = f"{dropped} damaged bytes at the end were" if b"\n" in rest[len(complete) :] else _INCOMPLETE
        warnings.warn(f"{path}: {what} dropped.", JournalWarning, stacklevel=4)
    return end


_INCOMPLETE = "the last line is incomplete and was"


def _is_event(line: bytes) -> bool:
    try:
        decode(line)
    except UNDECODABLE:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from error
