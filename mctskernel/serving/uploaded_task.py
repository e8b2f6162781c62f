"""A task folder that came over the network, written where a session's process may read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

MAX_FILES = 64
MAX_DEPTH = 4
MAX_NAME_BYTES = 200


class UploadError(ValueError):
    """Files that are no task folder; the message is a sentence."""


def write_task(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a task into a folder, which is made. Raises UploadError for names that lead elsewhere."""
    if len(files) > MAX_FILES:
        raise UploadError(f"The task has {len(files)} files; the limit is {MAX_FILES}.")
    paths = {_checked(name): data for name, data in files.items()}
    folder.mkdir(mode=0o700, parents=True)
    for path, data in paths.items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Never through a name that is there already.
            with target.open("xb") as file:
                file.write(data)
        except (FileExistsError, NotADirectoryError) as error:
            raise UploadError(f"Two files of the task have one name: {path}.") from error


def _checked(name: str) -> PurePosixPath:
    parts = name.split("/")
    if (
        len(parts) > MAX_DEPTH
        or any(part in {"", ".", ".."} for part in parts)
        or not name.isprintable()
        or "\\" in name
        or len(name.encode(errors="replace")) > MAX_NAME_BYTES
    ):
        raise UploadError(f"{name[:MAX_NAME_BYTES]!r} can't be the name of a task's file.")
    return PurePosixPath(name)
