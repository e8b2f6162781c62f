"""A file that holds one JSON object a line, and is written by processes that may die."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.user_errors import RunError

T = TypeVar("T")


def read_lines(path: Path, decoder: msgspec.json.Decoder[T]) -> list[T]:
    """The objects of a file; none where there is no file. A torn last line is left out. Raises RunError."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    found = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            found.append(decoder.decode(line))
        except UNDECODABLE as error:
            raise RunError(f"{path}, line {number}: {excerpt(error)}.") from error
    return found


def append_line(path: Path, value: msgspec.Struct) -> None:
    """Append an object: in the file when this returns, in place of a torn last line if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(value) + b"\n")
