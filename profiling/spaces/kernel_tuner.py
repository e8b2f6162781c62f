"""Kernel Tuner's cache files: read in every version so far, and written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError
from mctskernel.profiling.spaces.assembly import (
    Header,
    assemble,
    configuration,
    result,
    stages,
    text_of,
    value_of,
)
from mctskernel.profiling.spaces.document import members

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

MILLISECOND = 1e-3

ERROR = "__error__"
"""Where versions from 1.4 on say that a configuration failed."""

FAILED = frozenset(Outcome) - {Outcome.OK}

OUTCOME = "outcome"
"""Where we say of a failure what Kernel Tuner has no word for. Kernel Tuner takes it for one more measurement."""


def is_form(document: Mapping[str, Any]) -> bool:
    """Whether a document is a cache file."""
    return "cache" in document and "tune_params" in document


def read(document: Mapping[str, Any], path: Path, name: str, notes: tuple[str, ...]) -> SearchSpace:
    """The space of a cache file. Raises SpaceError."""
    parameters = _parameters(document, path)
    names = [parameter.name for parameter in parameters]
    cache = document["cache"]
    if not isinstance(cache, dict):
        raise SpaceError(f"{path}: 'cache' must map configurations to what was measured.")
    header = Header(
        name,
        device=str(document.get("device_name") or ""),
        kernel=str(document.get("kernel_name") or ""),
        notes=notes,
    )
    return assemble(path, header, parameters, _entries(cache, names, path))


def write_space(space: SearchSpace, path: Path) -> None:
    """Write a space as a cache file, compressed if its name ends in `.gz`. Raises OSError."""
    lines = ",".join(entry_line(space.names, each) for each in space.entries)
    data = f"{header_lines(space)}{lines}{CLOSING}".encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


CLOSING = "}\n}"
"""What follows the last entry of a cache file that is finished."""


def header_lines(space: SearchSpace, more: Mapping[str, object] | None = None) -> str:
    """A cache file up to its first entry; `more` are keys that a reader need not know."""
    header = {
        **(more or {}),
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": [],
        "tune_params_keys": list(space.names),
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
        "cache": {},
    }
    return json.dumps(header, indent="").removesuffix(CLOSING)


def entry_line(names: Sequence[str], entry: Entry) -> str:
    """An entry of a cache file on a line of its own, without the comma between it and the next."""
    key = ",".join(map(str, entry.values))
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
    return "\n" + json.dumps({key: content})[1:-1]


def _parameters(document: Mapping[str, Any], path: Path) -> list[Parameter]:
    listed = document["tune_params"]
    if (
        not isinstance(listed, dict)
        or not listed
        or not all(isinstance(each, list) for each in listed.values())
    ):
        raise SpaceError(f"{path}: 'tune_params' must map each parameter to a list of its values.")
    keys = document.get("tune_params_keys", list(listed))
    if (
        not isinstance(keys, list)
        or len(set(map(repr, keys))) != len(keys)
        or not set(map(repr, keys)) == set(map(repr, listed))
    ):
        raise SpaceError(f"{path}: 'tune_params_keys' must name the parameters of 'tune_params', each once.")
    return [
        Parameter(
            text_of(key, f"{path}: a parameter's name"),
            tuple(dict.fromkeys(value_of(value, f"{path}: a value of {key!r}") for value in listed[key])),
        )
        for key in keys
    ]


def _entries(cache: dict[str, Any], names: Sequence[str], path: Path) -> Iterator[Entry]:
    for key, content in members(cache):
        what = f"{path}, configuration {key!r}"
        if not isinstance(content, dict):
            raise SpaceError(f"{what} must hold what was measured.")
        time = content.get(ERROR, content.get("time"))
        outcome, seconds, word = result(time, MILLISECOND, FAILURES, what)
        said = content.get(OUTCOME)
        if seconds is None and isinstance(said, str) and said in FAILED:
            outcome = Outcome(said)
        yield Entry(
            configuration(content, names, what),
            outcome,
            seconds,
            word,
            stages(content, STAGES, MILLISECOND, what),
        )
