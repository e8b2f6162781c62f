"""A task folder as it travels: packed where the search runs, unpacked where its kernels are judged."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from mctskernel.core.task import TaskError

MAX_BYTES = 64 << 20
"""Of all files together: they are held in memory on every node."""

PREFIX = "mctskernel-task-"
_HELD = ".held"


def pack(folder: Path) -> dict[str, bytes]:
    """The folder's files by relative path, hidden ones and links to elsewhere left out. Raises TaskError."""
    home, total, files = folder.resolve(), 0, {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith((".", "__pycache__")) for part in name.parts) or not path.is_file():
            continue
        if not path.resolve().is_relative_to(home):
            continue
        total += path.stat().st_size
        if total > MAX_BYTES:
            raise TaskError(
                f"{folder} has more than {MAX_BYTES >> 20} MiB of files, too many to send to other machines."
            )
        files[name.as_posix()] = path.read_bytes()
    return files


@contextmanager
def unpacked(files: Mapping[str, bytes]) -> Iterator[Path]:
    """The files in a temporary folder. What killed processes left behind on this machine is swept away."""
    _sweep()
    with _held_folder() as folder:
        task = folder / "task"
        for name, data in files.items():
            path = task / _inside(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield task
    _sweep()


@contextmanager
def _held_folder() -> Iterator[Path]:
    """A folder with a file that is locked for as long as this process uses it, and from the moment it has its name."""
    made = Path(tempfile.mkdtemp())
    held = os.open(made / _HELD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    folder = made.with_name(f"{PREFIX}{made.name}")
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        made.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _inside(name: str) -> PurePosixPath:
    """A relative path that leads nowhere else. Raises TaskError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise TaskError(f"{name!r} is no path inside a task folder.")
    return path


def _sweep() -> None:
    for held in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_HELD}"):
        with suppress(OSError):
            descriptor = os.open(held, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(held.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
