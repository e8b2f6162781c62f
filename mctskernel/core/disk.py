"""Files and folders: atomic writes, texts by digest, advice when a disk refuses one, links that lead elsewhere."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.user_errors import RunError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, in a folder that exists. Raises OSError, also where a link, pipe or device is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(errno.EEXIST, "it is no regular file, and is left alone")
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


def link_outside(folder: Path) -> Path | None:
    """The first link in or below a folder, or the folder itself, that leads out of it. Raises OSError."""
    home = folder.resolve()
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if entry.is_symlink():
            if not Path(entry.path).resolve().is_relative_to(home):
                return Path(entry.path)
        elif entry.is_dir():
            inner = sorted(each.path for each in os.scandir(entry.path) if each.is_symlink())
            found = next((path for path in map(Path, inner) if not path.resolve().is_relative_to(home)), None)
            if found is not None:
                return found
    return None


_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BlobStore:
    """A folder of texts in a run, each in a file named by its digest, written once and never changed."""

    folder: Path

    def put(self, text: str) -> str:
        """Store a text and return its digest: on disk when this returns. Raises RunError."""
        data = text.encode(errors="replace")
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not _holds(path, data):
                # Not the run's own folder: one that was moved away must not come back with nothing but this in it.
                self.folder.mkdir(exist_ok=True)
                path.parent.mkdir(exist_ok=True)
                write_whole(path, data)
        except OSError as error:
            raise RunError(
                f"{path} can't be written: {error.strerror}. {remedy(error, self.folder.parent)}"
            ) from error
        return digest

    def get(self, digest: str) -> str:
        """The text of a digest. Raises RunError when it is missing or no longer matches."""
        if not _DIGEST.fullmatch(digest):
            raise RunError(f"{digest!r} is not a SHA-256 digest.")
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RunError(f"The blob {path} can't be read: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise RunError(f"The blob {path} is damaged: its content doesn't match its name.")
        return data.decode()

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file is there and as it should be: one that was damaged is written again."""
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
