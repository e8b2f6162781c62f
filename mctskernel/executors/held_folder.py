"""Temporary folders of processes, none of which outlives its process for long, even one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HELD = ".held"


@contextmanager
def held_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder whose name begins with `prefix`, removed at the end.

    What killed processes of the same user left behind under such names on this machine is swept away, before and after.
    A file in each folder is locked for as long as its process uses it, and from the moment the folder has its name; the
    kernel gives the lock back for whoever dies.
    """
    _sweep(prefix)
    made = Path(tempfile.mkdtemp())
    held = os.open(made / _HELD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    folder = made.with_name(f"{prefix}{made.name}")
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        made.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
    _sweep(prefix)


def _sweep(prefix: str) -> None:
    for held in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_HELD}"):
        with suppress(OSError):
            descriptor = os.open(held, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.geteuid():
                    shutil.rmtree(held.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
