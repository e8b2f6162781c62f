"""Exclusive use of a GPU while a kernel is evaluated on it, among all processes of this machine.

There are more locks, for reading counters. A GPU's counters belong to the process that has set them up last, until it
releases them. And the driver sets up counters for one GPU at a time: two processes that interleave its steps take more
than twice as long each.

Each lock is two files of the GPU's name, locked with `flock`, which the kernel releases when a process dies. A process
first locks the queue file, then the GPU's. One that has just released the GPU and wants it again finds the queue file
locked by a waiting process, so that the two alternate.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/tmp")  # noqa: S108 - the same for every user of the machine, whatever TMPDIR says
"""Where the files are. They are empty, and stay."""

POLL_SECONDS = 0.002  # how often a lock that is taken is tried again: at most what a change of holders costs

COUNTERS = "counters"
"""Stands in place of a UUID for the lock for reading counters, and before one for that of a GPU's counters."""

MEASURING = "measuring"
"""Stands before a UUID for the lock of what mustn't be disturbed, even by a kernel that nobody times."""

COUNTERS_PATIENCE = 2.0  # seconds to wait for such a lock, after which counters are read without it


def lock_files(uuid: str) -> tuple[Path, Path]:
    """The files of a GPU's lock: the queue, and the lock itself."""
    return FOLDER / f"mctskernel-gpu-{uuid}.next", FOLDER / f"mctskernel-gpu-{uuid}.lock"


_held_seconds = 0.0


def held_seconds() -> float:
    """How long this process has held GPUs, all of its locks together; those for reading counters don't count."""
    return _held_seconds


class InterruptedLockError(RuntimeError):
    """`interrupt` was called while the lock was waited for."""


class GpuLock:
    """A user's lock of one GPU, for one thread beside `interrupt`; always free, with a `warning`, without files."""

    def __init__(self, uuid: str) -> None:
        self.warning = ""
        self._counts = not uuid.startswith((COUNTERS, MEASURING))
        self._interrupted = threading.Event()
        self._files: tuple[int, ...] = ()
        try:
            self._files = tuple(map(_open, lock_files(uuid)))
        except OSError as error:
            self.warning = (
                f"Other processes may disturb timings on the GPU {uuid[:8]}: the lock file {error.filename} can't be "
                f"used ({error.strerror})."
            )

    @contextmanager
    def held(self, patience: float = math.inf) -> Iterator[bool]:
        """Hold the lock, or after `patience` seconds go on without it: False. Raises InterruptedLockError."""
        if not self._files:
            self._refuse_interrupted()
            yield True
            return
        queue, gpu = self._files
        deadline = time.monotonic() + patience
        if not self._acquire(queue, deadline):
            yield False
            return
        try:
            acquired = self._acquire(gpu, deadline)
        finally:
            fcntl.flock(queue, fcntl.LOCK_UN)
        began = time.monotonic()
        try:
            yield acquired
        finally:
            self._count(time.monotonic() - began)
            if acquired:
                fcntl.flock(gpu, fcntl.LOCK_UN)

    @property
    def is_contended(self) -> bool:
        """Whether another process waits for the lock; to be asked by its holder."""
        return bool(self._files) and not _is_unlocked(self._files[0])

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the lock or waits for it; to be asked by others."""
        return all(map(_is_unlocked, self._files))

    def interrupt(self) -> None:
        """Stop waiting, for good; from any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Close the files; call it when no other thread waits any more."""
        for file in self._files:
            os.close(file)
        self._files = ()

    def _count(self, seconds: float) -> None:
        global _held_seconds  # noqa: PLW0603 - of all locks of this process
        if self._counts:
            _held_seconds += seconds

    def _acquire(self, file: int, deadline: float) -> bool:
        while True:
            self._refuse_interrupted()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                self._interrupted.wait(POLL_SECONDS)
            else:
                return True

    def _refuse_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise InterruptedLockError("Waiting for the GPU was interrupted.")


def _is_unlocked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _open(path: Path) -> int:
    """A file that any user may lock. Another user's is only opened: systems refuse to create what is there."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(file, 0o666)
    return file
