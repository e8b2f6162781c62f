"""The journal: events in a file, one JSON object a line, each in the file before the search goes on.

A killed process loses no line. A power cut may lose the last few, but no evaluation and no paid reply: those
are flushed to the disk, with all before them, before anybody hears of them.

The first line names the schema and its version. A last line without its end was being written when the
process died: it is dropped with a warning. So are damaged lines at the end, such as a power cut leaves, which the next
append moves to a file of their own. Whatever else can't be read is an error with file and line.
"""

from __future__ import annotations

import contextlib
import gc
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
from mctskernel.core.user_errors import BadRunError
from mctskernel.tree.bookkeeping import count
from mctskernel.tree.events import Event, Proposed, decode, encode_and_decode, is_costly
from mctskernel.tree.evidence import Filed, Lines, decode_filed
from mctskernel.tree.fold import record
from mctskernel.tree.legality import TreeError
from mctskernel.tree.node import Tree

if sys.platform != "win32":
    import fcntl

SCHEMA = "mctskernel.journal"
SCHEMA_VERSION = 4
"""1 had no predictions, 2 no factors, both have paths whole; 3 had no rollouts. An append makes a version 4 of each."""

OLDEST_VERSION = 1


class JournalError(BadRunError):
    """A journal that can't be read or written; the message is a sentence with the file and the line."""


class JournalWarning(UserWarning):
    """Lines at the end that are torn or damaged were dropped."""


class EventLog(Protocol):
    """Where events are kept before they change the tree."""

    def append(self, event: Event) -> Event | Filed:
        """Keeps an event and returns it as it will be read again; what no search needs may be left where it is kept."""
        ...


class MemoryJournal:
    """The events of a search that isn't kept."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> Event:
        """Keeps an event and returns it as a journal on disk would give it back."""
        _, kept = encode_and_decode(event)
        self.events.append(kept)
        return kept


class Journal:
    """A journal open for appending, by one process at a time.

    With `durable` false nothing is flushed to the disk: every line outlives the process, not a power cut.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path.absolute()
        self._lines = Lines(self.path)
        self._durable = durable
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"{path} can't be opened: {error.strerror}.") from error
        try:
            self._lock()
            self._place = _place_of(os.fstat(self._file))
            self._end = _end_of_lines(path)
            self._drop_damaged()
            if self._end == 0:
                self._write(_HEADER_LINE, flush=self._durable)
            else:
                self._migrate()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, event: Event) -> Event | Filed:
        """Writes an event and returns it as it will be read again, what no search needs left in the file.

        Raises JournalError when it can't be written; the journal then ends with the event before it.
        """
        self._check_place()
        (line, kept), offset = encode_and_decode(event), self._end
        self._write(line + b"\n", flush=self._durable and is_costly(event))
        if isinstance(kept, Proposed):
            self._lines.remember(offset, kept)
        return decode_filed(line, self._lines, offset)

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
        except BaseException as error:
            # An interrupt too: the next line begins here, and must not leave half of this one behind it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        self._end += len(line)

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self.path} can't be written: {error.strerror}. {remedy(error, self.path.parent)}"
        )

    def _check_place(self) -> None:
        """Refuse to write to a file that nobody will find: one that was moved away or deleted meanwhile."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - as fast as it gets, before every line
        except OSError as error:
            raise self._unwritable(error) from error
        if _place_of(found) != self._place:
            raise JournalError(f"{self.path} is another file than it was when this search began.")

    def _drop_damaged(self) -> None:
        """Cut off what isn't part of the tree, keeping the lines that were whole once beside the journal."""
        try:
            damaged = os.pread(self._file, os.fstat(self._file).st_size - self._end, self._end)
            if b"\n" in damaged:
                with self.path.with_name(f"{self.path.name}.damaged").open("ab") as file:
                    file.write(damaged)
            os.ftruncate(self._file, self._end)
        except OSError as error:
            raise self._unwritable(error) from error

    def _migrate(self) -> None:
        """Rewrite the header in its place, which every older one fills at least, so that older programs refuse."""
        try:
            length = os.pread(self._file, self._end, 0).index(b"\n")
            os.pwrite(self._file, _HEADER_LINE.rstrip(b"\n").ljust(length), 0)
        except OSError as error:
            raise self._unwritable(error) from error

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"{self.path} is in use by another process.") from error


def read_tree(path: Path) -> Tree:
    """The tree that a journal's events make; what no search needs stays in the file until it is asked for."""
    tree, lines = Tree(), Lines(path.absolute())
    with _garbage_uncollected():
        for number, offset, line in _lines(path):
            try:
                record(tree, decode_filed(line, lines, offset))
            except TreeError as error:
                raise JournalError(f"{path}, line {number}: {error}") from error
            except UNDECODABLE as error:
                raise _no_event(path, number, error) from error
        count(tree)
    return tree


def read_events(path: Path) -> Iterator[Event]:
    """The events of a journal, in order."""
    for number, _, line in _lines(path):
        try:
            yield decode(line)
        except UNDECODABLE as error:
            raise _no_event(path, number, error) from error


def check_header(path: Path, line: bytes) -> None:
    """Raises JournalError unless the first line of a journal, without its end, is one that this program reads."""
    try:
        header = msgspec.json.decode(line, type=_Header)
    except UNDECODABLE as error:
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


def _no_event(path: Path, number: int, error: Exception) -> JournalError:
    return JournalError(f"{path}, line {number}: this is no event: {excerpt(error)}.")


class _Header(msgspec.Struct, frozen=True):
    schema: str
    version: int


_HEADER_LINE = msgspec.json.encode(_Header(SCHEMA, SCHEMA_VERSION)) + b"\n"


def _place_of(status: os.stat_result) -> tuple[int, int]:
    """Which file this is, whatever its name."""
    return status.st_dev, status.st_ino


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The whole lines after the header, which is checked: number, offset in bytes, and text with its end."""
    end = _end_of_lines(path)
    with _readable(path) as file:
        offset = len(file.readline())
        for number, line in enumerate(file, start=2):
            if offset >= end:
                break
            yield number, offset, line
            offset += len(line)


def _end_of_lines(path: Path) -> int:
    """Bytes to the end of the last line that is whole and an event, the header checked; none without a header."""
    what = "the last line is incomplete and was"
    with _readable(path) as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            if not _HEADER_LINE.startswith(header):
                raise JournalError(f"{path} isn't a journal of mctskernel.")
            torn, end = bool(header), 0
        else:
            check_header(path, header[:-1])
            length = file.seek(0, os.SEEK_END)
            whole = _after_last_newline(file, length)
            end = _after_last_event(file, whole, len(header))
            torn = end < length
            if end < whole:
                what = f"{length - end} damaged bytes at the end were"
    if torn:
        warnings.warn(f"{path}: {what} dropped.", JournalWarning, stacklevel=4)
    return end


def _after_last_event(file: BinaryIO, end: int, least: int) -> int:
    """The end of the last line that is an event, of those whole lines that end here; `least` if none is."""
    while end > least:
        begin = _after_last_newline(file, end - 1)
        file.seek(begin)
        if _is_event(file.read(end - begin)):
            break
        end = begin
    return end


def _is_event(line: bytes) -> bool:
    try:
        decode(line)
    except UNDECODABLE:
        return False
    return True


def _after_last_newline(file: BinaryIO, length: int) -> int:
    block, end = 1 << 10, length
    while end > 0:
        start = max(end - block, 0)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end, block = start, 2 * block
    return 0


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    try:
        # Lines are thousands of bytes; the default buffer holds one or two.
        with path.open("rb", buffering=1 << 20) as file:
            yield file
    except OSError as error:
        raise JournalError(f"{path} can't be read: {error.strerror}.") from error


@contextlib.contextmanager
def _garbage_uncollected() -> Iterator[None]:
    """Nothing that a replay makes is garbage; looking for it again and again takes longer than the replay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
