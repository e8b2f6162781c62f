"""Files and folders: atomic writes, advice when a disk refuses one, and links that lead out of a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, in a folder that exists. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if temporary.is_symlink():
            # It may point to another file of the user's.
            temporary.unlink()
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remedy(error: OSError, run: Path) -> str:
    """How to continue the run after this error."""
    if error.errno in _NO_SPACE:
        first = "Free some space"
    elif error.errno in _NO_PERMISSION:
        first = "Make the run's folder writable"
    elif error.errno == errno.ENOENT:
        first = "The run's folder was moved or deleted: bring it back"
    else:
        first = "Fix that"
    return f"Everything before is kept. {first}, then go on with `mctskernel resume {run}`."


def stray_link(folder: Path) -> Path | None:
    """The first link in a folder, or in one of its folders, that leads out of it; the folder may be one itself.

    Raises OSError where the folder can't be listed.
    """
    home = folder.resolve()
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if entry.is_symlink():
            if not Path(entry.path).resolve().is_relative_to(home):
                return Path(entry.path)
        elif entry.is_dir():
            inner = sorted(each.path for each in os.scandir(entry.path) if each.is_symlink())
            stray = next((path for path in map(Path, inner) if not path.resolve().is_relative_to(home)), None)
            if stray is not None:
                return stray
    return None
