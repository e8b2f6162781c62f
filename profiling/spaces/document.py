"""The JSON document in a file of a search space, and what of it is still good if it was cut off."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mctskernel.core.space import SpaceError

MOST_BYTES = 1 << 30
"""Uncompressed. The largest public spaces have about a quarter of this."""

_GZIP_MAGIC = b"\x1f\x8b"
_CACHE_OPENED = re.compile(r'"cache"\s*:\s*\{')


class Repeated(dict[str, Any]):
    """An object of JSON with a key more than once: the first of each, and all `pairs` in the order of the file."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(reversed(pairs))
        self.pairs = pairs


def read_document(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The JSON object in a file, with notes on what had to be mended. Raises SpaceError.

    Kernel Tuner appends to its cache files and closes the brackets at the end: where they are missing, because the
    tuning was cut off, what was written whole is read.
    """
    text = _text(path)
    for candidate, note in _readings(text):
        try:
            document = json.loads(candidate, object_pairs_hook=_object)
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            raise SpaceError(f"{path} holds no JSON object, as a search space does.")
        return document, (f"{path}: {note}",) if note else ()
    raise SpaceError(f"{path} is not JSON.")


def members(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members of an object of JSON, repeated ones included."""
    yield from found.pairs if isinstance(found, Repeated) else found.items()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Repeated(pairs)


def _readings(text: str) -> Iterator[tuple[str, str]]:
    yield text, ""
    if '"cache"' not in text:
        return
    whole = text.rstrip().removesuffix(",")
    yield whole + "}}", "the tuning that wrote it did not finish; what is there is read."
    last = whole.rfind("},")
    if last > 0:
        yield whole[: last + 1] + "}}", "its last entry is cut off, and left out."
    if header := _CACHE_OPENED.search(whole):
        yield whole[: header.end()] + "}}", "its only entry is cut off, and left out."


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP_MAGIC
        with gzip.open(path) if compressed else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except EOFError as error:
        raise SpaceError(f"{path} is cut off: its compressed data ends too early.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise SpaceError(f"{path} is damaged: its compressed data can't be unpacked ({error}).") from error
    except OSError as error:
        raise SpaceError(f"{path} can't be read: {error.strerror or error}.") from error
    if len(data) > MOST_BYTES:
        raise SpaceError(
            f"{path} is larger than {MOST_BYTES >> 20} MiB (uncompressed), the most that is read."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpaceError(f"{path} is not JSON: it is no UTF-8 text.") from error
