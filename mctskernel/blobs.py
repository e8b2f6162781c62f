"""Texts of a run by their SHA-256: sources, patches, compiler logs, prompts, replies."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.disk import remedy, write_whole
from mctskernel.core.user_errors import BadRunError

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(BadRunError, RuntimeError):
    """A blob that is missing, damaged or can't be written; the message is a sentence that names the file."""


@dataclass(frozen=True)
class BlobStore:
    """A folder of texts in a run, each in a file named by its digest, written once and never changed."""

    folder: Path

    def put(self, text: str) -> str:
        """Store a text and return its digest: on disk when this returns. Raises BlobError."""
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
            raise BlobError(
                f"{path} can't be written: {error.strerror}. {remedy(error, self.folder.parent)}"
            ) from error
        return digest

    def get(self, digest: str) -> str:
        """The text of a digest. Raises BlobError when it is missing or no longer matches."""
        if not _DIGEST.fullmatch(digest):
            raise BlobError(f"{digest!r} is not a SHA-256 digest.")
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BlobError(f"The blob {path} can't be read: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise BlobError(f"The blob {path} is damaged: its content doesn't match its name.")
        return data.decode()

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file is there and as it should be: one that was damaged is written again."""
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
