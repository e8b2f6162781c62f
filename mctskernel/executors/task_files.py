"""A task folder as it travels: packed where the search runs, written where its kernels are judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mctskernel.core.task import TaskError
from mctskernel.executors.held_folder import held_folder

MAX_BYTES = 64 << 20
"""Of all files together: they are held in memory on every node."""

MAX_FILES = 64
MAX_DEPTH = 4
MAX_NAME_BYTES = 200

PREFIX = "mctskernel-task-"


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
    _check_names(files)
    return files


@contextmanager
def unpacked(files: Mapping[str, bytes]) -> Iterator[Path]:
    """The files in a temporary folder. Raises TaskError for names that lead elsewhere."""
    with held_folder(PREFIX) as folder:
        write_task(files, folder / "task")
        yield folder / "task"


def write_task(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a task into a folder, which is made. Raises TaskError for names that lead elsewhere."""
    _check_names(files)
    folder.mkdir(mode=0o700, parents=True)
    for name, data in files.items():
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Never through a name that is there already.
            with target.open("xb") as file:
                file.write(data)
        except (FileExistsError, NotADirectoryError) as error:
            raise TaskError(f"Two files of the task have one name: {name}.") from error


def _check_names(files: Mapping[str, bytes]) -> None:
    if len(files) > MAX_FILES:
        raise TaskError(f"The task has {len(files)} files; the limit is {MAX_FILES}.")
    for name in files:
        if not _leads_inside(name):
            raise TaskError(f"{name[:MAX_NAME_BYTES]!r} can't be the name of a task's file.")


def _leads_inside(name: str) -> bool:
    parts = name.split("/")
    return (
        len(parts) <= MAX_DEPTH
        and not any(part in {"", ".", ".."} for part in parts)
        and name.isprintable()
        and "\\" not in name
        and len(name.encode(errors="replace")) <= MAX_NAME_BYTES
    )
