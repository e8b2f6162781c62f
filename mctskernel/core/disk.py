"""Files that are never seen half-written, and what to do about a disk that refuses, in a sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in a folder that exists, so that nobody ever sees half of it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if temporary.is_symlink():
            # Somebody's who wants another file to be written.
            temporary.unlink()
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remedy(error: OSError, run: Path) -> str:
    """How the run that met this error can be gone on with."""
    if error.errno in _NO_SPACE:
        first = "Free some space"
    elif error.errno in _NO_PERMISSION:
        first = "Make the run's folder writable"
    elif error.errno == errno.ENOENT:
        first = "The run's folder was moved or deleted: bring it back"
    else:
        first = "Mend that"
    return f"Everything before is kept. {first}, then go on with `mctskernel resume {run}`."
