"""Brute-forced search spaces in Kernel Tuner's cache files, which are read in every version so far, and written."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError, Value

MOST_BYTES = 1 << 30
"""Uncompressed. The largest public spaces have about a quarter of this."""

NO_TIME = 1e20
"""What old versions of Kernel Tuner wrote for the time of a configuration that failed."""

LARGEST = 2**63 - 1


def read_space(path: Path) -> SearchSpace:
    """The space of a file, compressed by gzip or not. Raises SpaceError."""
    document = _document(path)
    if "cache" in document and "tune_params" in document:
        return _read_cache(document, path)
    keys = ", ".join(f"'{key}'" for key in list(document)[:5]) or "nothing"
    raise SpaceError(
        f"{path} is no cache file of Kernel Tuner, which has 'cache' and 'tune_params'; it has {keys}."
    )


def space_name(path: Path) -> str:
    """What the space of a file is called: the file's name without its suffixes, of letters, digits, '_', '-', '.'."""
    stem = re.sub(r"\.json(\.gz)?$", "", path.name)
    return re.sub(r"[^\w.-]", "_", stem).lstrip(".-") or "space"


def write_space(space: SearchSpace, path: Path) -> None:
    """Write a space as a cache file, compressed if its name ends in `.gz`. Raises OSError."""
    document = {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": [],
        "tune_params_keys": list(space.names),
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
        "cache": {",".join(map(str, each.values)): _content(space.names, each) for each in space.entries},
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _content(names: Sequence[str], entry: Entry) -> dict[str, object]:
    content: dict[str, object] = dict(zip(names, entry.values, strict=True))
    if entry.seconds is None:
        content["time"] = word = WORDS.get(entry.outcome, RAN_AND_FAILED)
        if entry.outcome is not FAILURES[word]:
            content[OUTCOME] = entry.outcome
    else:
        content["time"] = entry.seconds / MILLISECOND
    for theirs, ours in STAGES.items():
        if ours in entry.stage_seconds:
            content[theirs] = entry.stage_seconds[ours] / MILLISECOND
    return content


# Kernel Tuner's cache files.

MILLISECOND = 1e-3

FAILURES = {
    "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "RuntimeFailedConfig": Outcome.LAUNCH_ERROR,
    "InvalidConfig": Outcome.REJECTED,
    "ErrorConfig": Outcome.CRASH,
}
"""Kernel Tuner's words in the place of a time."""

WORDS = {
    Outcome.BUILD_ERROR: "CompilationFailedConfig",
    Outcome.REJECTED: "InvalidConfig",
    Outcome.DUPLICATE: "InvalidConfig",
}
"""The word of an outcome; that of all others is RAN_AND_FAILED."""

RAN_AND_FAILED = "RuntimeFailedConfig"

STAGES = {
    "compile_time": "compile",
    "verification_time": "verification",
    "benchmark_time": "benchmark",
    "strategy_time": "strategy",
    "framework_time": "framework",
}
"""Our name of each stage by the file's, which holds milliseconds."""

ERROR = "__error__"
"""Where versions from 1.4 on say that a configuration failed."""

OUTCOME = "outcome"
"""Where we say of a failure what Kernel Tuner has no word for. Kernel Tuner takes it for one more measurement."""


def _read_cache(document: Mapping[str, Any], path: Path) -> SearchSpace:
    parameters = _parameters(document, path)
    cache = document["cache"]
    if not isinstance(cache, dict):
        raise SpaceError(f"{path}: 'cache' must map configurations to what was measured.")
    entries = _cache_entries(cache, [parameter.name for parameter in parameters], path)
    device, kernel = (str(document.get(key) or "") for key in ("device_name", "kernel_name"))
    return _assembled(path, parameters, entries, device=device, kernel=kernel)


def _parameters(document: Mapping[str, Any], path: Path) -> list[Parameter]:
    listed = document["tune_params"]
    if (
        not isinstance(listed, dict)
        or not listed
        or not all(isinstance(each, list) for each in listed.values())
    ):
        raise SpaceError(f"{path}: 'tune_params' must map each parameter to a list of its values.")
    keys = document.get("tune_params_keys", list(listed))
    if not isinstance(keys, list) or sorted(map(repr, keys)) != sorted(map(repr, listed)):
        raise SpaceError(f"{path}: 'tune_params_keys' must name the parameters of 'tune_params', each once.")
    return [
        Parameter(
            _text(key, f"{path}: a parameter's name"),
            tuple(dict.fromkeys(_value(value, f"{path}: a value of {key!r}") for value in listed[key])),
        )
        for key in keys
    ]


def _cache_entries(cache: dict[str, Any], names: Sequence[str], path: Path) -> Iterator[Entry]:
    for key, content in cache.items():
        what = f"{path}, configuration {key!r}"
        if not isinstance(content, dict):
            raise SpaceError(f"{what} must hold what was measured.")
        outcome, seconds, word = _result(content.get(ERROR, content.get("time")), what)
        said = content.get(OUTCOME)
        if seconds is None and isinstance(said, str) and said in set(Outcome) - {Outcome.OK}:
            outcome = Outcome(said)
        taken = _stages(content, what)
        yield Entry(_configuration(content, names, what), outcome, seconds, word, taken)


# `what` begins the sentence of a SpaceError.


def _assembled(
    path: Path,
    parameters: Sequence[Parameter],
    entries: Iterable[Entry],
    *,
    device: str = "",
    kernel: str = "",
) -> SearchSpace:
    """The space of a file's entries. Raises SpaceError where there is none.

    Values that entries have and their parameter doesn't are added to it. Of a configuration that occurs more than
    once, the first counts.
    """
    found: dict[tuple[Value, ...], Entry] = {}
    for entry in entries:
        found.setdefault(entry.values, entry)
    if not found:
        raise SpaceError(f"{path} has no configurations.")
    # Equal values are written alike everywhere (1 and 1.0 are equal), so that a configuration is one text.
    known = [
        {value: value for value in dict.fromkeys((*parameter.values, *(values[place] for values in found)))}
        for place, parameter in enumerate(parameters)
    ]
    return SearchSpace(
        name=space_name(path),
        parameters=tuple(
            Parameter(each.name, tuple(values)) for each, values in zip(parameters, known, strict=True)
        ),
        entries=tuple(
            Entry(
                tuple(written[value] for written, value in zip(known, entry.values, strict=True)),
                entry.outcome,
                entry.seconds,
                entry.word,
                entry.stage_seconds,
            )
            for entry in found.values()
        ),
        device=_printable(device),
        kernel=_printable(kernel),
    )


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


def _configuration(found: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[Value, ...]:
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise SpaceError(f"{what}: the parameter {missing!r} is missing.")
    return tuple(_value(found[name], f"{what}: {name!r}") for name in names)


def _value(found: object, what: str) -> Value:
    if isinstance(found, str):
        return _text(found, what)
    if isinstance(found, bool) or (isinstance(found, int) and abs(found) <= LARGEST):
        return found
    if isinstance(found, float) and math.isfinite(found):
        return found
    raise SpaceError(f"{what} is {_short(found)}; values must be numbers, booleans or strings.")


def _text(found: object, what: str) -> str:
    """A text that can be written down."""
    if isinstance(found, str) and _printable(found) == found:
        return found
    raise SpaceError(f"{what} is {_short(found)}, which is no text.")


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


def _document(path: Path) -> dict[str, Any]:
    text = _contents(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpaceError(
            f"{path} is not JSON: where a tuning was cut off, let Kernel Tuner go on with the same cache file."
        ) from error
    if not isinstance(document, dict):
        raise SpaceError(f"{path} holds no JSON object, as a search space does.")
    return document


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
