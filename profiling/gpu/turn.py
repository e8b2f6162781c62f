"""A GPU's turn: whoever holds it is alone in timing anything there, among all processes of this machine.

There is one more, for counting: the driver sets up counters for one GPU at a time, and who takes turns with the whole
of it waits for less than who takes turns with each of its steps, and gets out of the others' way for the next time.

Two locks on files of the GPU's name, by `flock`, which the kernel gives back for whoever dies. The first is that of
the one who comes next, the second that of the one whose turn it is: who has just had a turn and wants another one
finds the place of the next one taken, so that those who wait take turns.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/tmp")  # noqa: S108 - every user of the machine finds it, whatever TMPDIR says
"""Where the files are. They are empty, and stay."""

POLL_SECONDS = 0.002
"""How often a lock that somebody else holds is tried again: what changing turns costs, at the most."""

COUNTING = "counters"
"""What the turn for counting goes by in place of a UUID."""

COUNTING_PATIENCE = 2.0
"""Seconds that are waited for that turn: who has it for longer is in trouble, and counting goes without it."""


def turn_files(uuid: str) -> tuple[Path, Path]:
    """The files of a GPU's turn: that of the one who comes next, and that of the one whose turn it is."""
    return FOLDER / f"mctskernel-gpu-{uuid}.next", FOLDER / f"mctskernel-gpu-{uuid}.lock"


class InterruptedTurnError(RuntimeError):
    """The turn was waited for, and is no longer wanted."""


class Turn:
    """One GPU's turn, for one thread at a time, besides `interrupt`. Everybody who wants one has a `Turn` of their own.

    Where the files can't be used `remark` says so, and the turn is always free.
    """

    def __init__(self, uuid: str) -> None:
        self.remark = ""
        self._interrupted = threading.Event()
        self._locks: tuple[int, ...] = ()
        try:
            self._locks = tuple(map(_open, turn_files(uuid)))
        except OSError as error:
            self.remark = (
                f"Other processes may disturb what is timed on the GPU {uuid[:8]}: {error.filename} can't be used "
                f"({error.strerror})."
            )

    @contextmanager
    def held(
        self, patience: float = math.inf, before_waiting: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Wait for the turn and keep it meanwhile; after `patience` seconds go on without it.

        `before_waiting` is called where the turn isn't free. Raises InterruptedTurnError once `interrupt` was called.
        """
        if not self._locks:
            self._refuse_interrupted()
            yield
            return
        following, holding = self._locks
        deadline = time.monotonic() + patience
        if not self._is_free:
            before_waiting()
        if not self._take(following, deadline):
            yield
            return
        try:
            taken = self._take(holding, deadline)
        finally:
            fcntl.flock(following, fcntl.LOCK_UN)
        try:
            yield
        finally:
            if taken:
                fcntl.flock(holding, fcntl.LOCK_UN)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the turn; to be asked by who has it."""
        return bool(self._locks) and not _is_unlocked(self._locks[0])

    def interrupt(self) -> None:
        """Wait no longer, for good; from any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Give the files back; call it when no other thread waits any more."""
        for lock in self._locks:
            os.close(lock)
        self._locks = ()

    @property
    def _is_free(self) -> bool:
        return all(map(_is_unlocked, self._locks))

    def _take(self, lock: int, deadline: float) -> bool:
        """Whether the lock could be had in time."""
        while True:
            self._refuse_interrupted()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                self._interrupted.wait(POLL_SECONDS)
            else:
                return True

    def _refuse_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise InterruptedTurnError("The GPU's turn is no longer wanted.")


def _is_unlocked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _open(path: Path) -> int:
    """A file that anybody may lock. Another user's is opened only: systems refuse to create what is there."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(lock, 0o666)
    return lock
