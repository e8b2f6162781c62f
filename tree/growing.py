"""A journal that another process appends to, folded into a tree as it grows.

Nothing is locked or mended here: a line without its end is being written, and is read once it is whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.tree.events import Event, decode
from mctskernel.tree.evidence import Lines, decode_filed
from mctskernel.tree.fold import apply
from mctskernel.tree.journal import JournalError, check_header
from mctskernel.tree.legality import TreeError
from mctskernel.tree.node import Tree

if sys.platform != "win32":
    import fcntl


class GrowingTree:
    """The tree of what a journal holds so far; an empty one until there is a journal."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.tree = Tree()
        self._lines = Lines(self.path)
        self._number = self._offset = 0
        self._last = b""

    def has_gone_back(self) -> bool:
        """Whether what was read isn't in the journal any more; the tree is then begun anew.

        An append that fails takes its line back, and whoever resumes a search cuts a damaged end off.
        """
        with suppress(FileNotFoundError), self._open() as file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) == self._last:
                return False
        if not self._offset:
            return False
        self.tree, self._lines = Tree(), Lines(self.path)
        self._number, self._offset, self._last = 0, 0, b""
        return True

    def advance(self) -> Iterator[Event]:
        """The events that are new, each once the tree knows it. Raises JournalError."""
        with suppress(FileNotFoundError), self._open() as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                number, offset = self._number + 1, self._offset
                event = self._take(line, number, offset)
                self._number, self._offset = number, offset + len(line)
                # A search that begins to append to an old journal rewrites the header in its place.
                self._last = b"" if event is None else line
                if event is not None:
                    yield event

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"{self.path} can't be read: {error.strerror}.") from error

    def _take(self, line: bytes, number: int, offset: int) -> Event | None:
        """Tells the tree of a line's event; None of the header."""
        if number == 1:
            check_header(self.path, line[:-1])
            return None
        try:
            event = decode(line)
            apply(self.tree, decode_filed(line, self._lines, offset))
        except TreeError as error:
            raise JournalError(f"{self.path}, line {number}: {error}") from error
        except UNDECODABLE as error:
            raise JournalError(f"{self.path}, line {number}: this is no event: {excerpt(error)}.") from error
        return event


def is_being_written(path: Path) -> bool:
    """Whether a process has the journal open for appending; where locks don't tell, it may have.

    Where nobody has, it is locked for the moment that it takes to find out.
    """
    if sys.platform == "win32":
        return True
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
