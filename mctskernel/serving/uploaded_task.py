"""A task that came over the network: what it asks for, and its folder where a session's process may read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.executors.http_api import OpenSession
from mctskernel.profiling.architecture import known_architectures
from mctskernel.serving.session_protocol import Open
from mctskernel.serving.settings import Settings

MAX_FILES = 64
MAX_DEPTH = 4
MAX_NAME_BYTES = 200


class UploadError(ValueError):
    """What is no task for this machine; the message is a sentence."""


def opening_of(request: OpenSession, settings: Settings, folder: Path) -> Open:
    """How a session's process opens a task that is in a folder. Raises UploadError for what can't be had here."""
    if request.language not in SOURCE_LANGUAGES:
        raise UploadError(f"Kernels in the language '{request.language}' can't be built.")
    return Open(
        settings.kind,
        str(folder),
        _architecture(request.architecture, settings),
        request.seed,
        request.language,
        request.trial,
        settings.workers,
        settings.options,
        tuple(map(str, settings.reads)),
        settings.opener,
    )


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


def _architecture(wanted: str, settings: Settings) -> str:
    """A client's choice where GPUs are modelled: a name alone, since a path would be one of this machine."""
    if settings.kind == "gpu" or not wanted:
        return settings.architecture
    known = known_architectures()
    if wanted.upper() not in known:
        raise UploadError(f"No GPU called {wanted[:50]!r} is described here: there are {', '.join(known)}.")
    return wanted.upper()


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
