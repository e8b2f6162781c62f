"""Brute-forced search spaces in Kernel Tuner's cache files, which are read in every version so far."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mctskernel.core.documents import excerpt
from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError, Value

MOST_BYTES = 1 << 30  # uncompressed. The largest public spaces have about a quarter of this.
NO_TIME = 1e20  # what old versions of Kernel Tuner wrote for the time of a configuration that failed


class _Cache(msgspec.Struct):
    """What is read of a cache file."""

    tune_params: Annotated[dict[str, tuple[Value, ...]], msgspec.Meta(min_length=1)]
    cache: dict[str, dict[str, Any]]
    tune_params_keys: tuple[str, ...] | None = None
    device_name: str | None = None
    kernel_name: str | None = None

    def __post_init__(self) -> None:
        """Names are each there once. Raises ValueError."""
        if sorted(self.names) != sorted(self.tune_params):
            raise ValueError("'tune_params_keys' must name the parameters of 'tune_params', each once")

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in the order of values."""
        return tuple(self.tune_params) if self.tune_params_keys is None else self.tune_params_keys


def read_space(path: Path) -> SearchSpace:
    """The space of a file, compressed by gzip or not. Raises SpaceError."""
    text = _contents(path)
    try:
        found = msgspec.convert(json.loads(text), _Cache)
    except msgspec.ValidationError as error:
        raise SpaceError(f"{path} is no cache file of Kernel Tuner: {excerpt(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise SpaceError(
            f"{path} is not JSON: where a tuning was cut off, let Kernel Tuner go on with the same cache file."
        ) from error
    return _assembled(path, found)


def space_name(path: Path) -> str:
    """What the space of a file is called: the file's name without its suffixes, of letters, digits, '_', '-', '.'."""
    stem = re.sub(r"\.json(\.gz)?$", "", path.name)
    return re.sub(r"[^\w.-]", "_", stem).lstrip(".-") or "space"


# Kernel Tuner's cache files.

MILLISECOND = 1e-3

FAILURES = {
    "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "RuntimeFailedConfig": Outcome.LAUNCH_ERROR,
    "InvalidConfig": Outcome.REJECTED,
    "ErrorConfig": Outcome.CRASH,
}
"""Kernel Tuner's words in the place of a time."""

STAGES = {
    "compile_time": "compile",
    "verification_time": "verification",
    "benchmark_time": "benchmark",
    "strategy_time": "strategy",
    "framework_time": "framework",
}
"""Our name of each stage by the file's, which holds milliseconds."""

ERROR = "__error__"  # where versions from 1.4 on say that a configuration failed


def _assembled(path: Path, found: _Cache) -> SearchSpace:
    """The space of a file's entries, of repeated ones the first. Raises SpaceError where there is none."""
    entries: dict[tuple[Value, ...], Entry] = {}
    for entry in _entries(found, path):
        entries.setdefault(entry.values, entry)
    if not entries:
        raise SpaceError(f"{path} has no configurations.")
    # Equal values are written alike everywhere (1 and 1.0 are equal), so that a configuration is one text.
    known = [
        {
            value: value
            for value in dict.fromkeys((*found.tune_params[name], *(each[place] for each in entries)))
        }
        for place, name in enumerate(found.names)
    ]
    for value in (*found.names, *(value for values in known for value in values)):
        _check(value, path)
    return SearchSpace(
        name=space_name(path),
        parameters=tuple(
            Parameter(name, tuple(values)) for name, values in zip(found.names, known, strict=True)
        ),
        entries=tuple(
            replace(
                entry, values=tuple(written[each] for written, each in zip(known, entry.values, strict=True))
            )
            for entry in entries.values()
        ),
        device=_printable(found.device_name or ""),
        kernel=_printable(found.kernel_name or ""),
    )


def _entries(found: _Cache, path: Path) -> Iterator[Entry]:
    for key, content in found.cache.items():
        what = f"{path}, configuration {key!r}"
        missing = next((name for name in found.names if name not in content), None)
        if missing is not None:
            raise SpaceError(f"{what}: the parameter {missing!r} is missing.")
        outcome, seconds, word = _result(content.get(ERROR, content.get("time")), what)
        values = tuple(content[name] for name in found.names)
        if not all(isinstance(each, bool | int | float | str) for each in values):
            raise SpaceError(f"{what}: values must be numbers, booleans or strings.")
        yield Entry(values, outcome, seconds, word, _stages(content, what))


# `what` begins the sentence of a SpaceError.


def _check(value: Value, path: Path) -> None:
    """Raise SpaceError for a value that can't be written down."""
    is_endless = isinstance(value, float) and not math.isfinite(value)
    if is_endless or (isinstance(value, str) and _printable(value) != value):
        raise SpaceError(f"{path} has the value {_short(value)}, which can't be written down.")


def _result(time: object, what: str) -> tuple[Outcome, float | None, str]:
    """Outcome, seconds, and the word of a failure, from a time in milliseconds or a word in its place."""
    if isinstance(time, str):
        if time not in FAILURES:
            raise SpaceError(f"{what}: {time!r} is no failure that is known ({', '.join(FAILURES)}).")
        return FAILURES[time], None, time
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise SpaceError(f"{what}: its time is {time!r}, which is neither a number nor a failure.")
    if not time < NO_TIME:
        return Outcome.CRASH, None, repr(time)[:20]
    if time <= 0 or time * MILLISECOND <= 0:
        raise SpaceError(f"{what}: its time is {time!r}, which is not above 0.")
    return Outcome.OK, time * MILLISECOND, ""


def _stages(found: Mapping[str, Any], what: str) -> dict[str, float]:
    """Seconds by our names of stages. A timer that ran backwards took nothing."""
    taken: dict[str, float] = {}
    for theirs, ours in STAGES.items():
        value = found.get(theirs)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < NO_TIME:
            raise SpaceError(f"{what}: {theirs!r} is {_short(value)}, which is no time.")
        taken[ours] = max(0.0, value * MILLISECOND)
    return taken


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _short(found: object) -> str:
    return repr(found)[:60]


def _contents(path: Path) -> str:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
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
