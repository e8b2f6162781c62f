"""T4 results, the auto-tuning community's format, as Kernel Tuner and others write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError
from mctskernel.profiling.spaces import kernel_tuner
from mctskernel.profiling.spaces.assembly import (
    Header,
    assemble,
    configuration,
    result,
    stages,
    text_of,
)

MAJOR_VERSION = "1"

CORRECT = "correct"

INVALIDITY = {
    "timeout": Outcome.TIMEOUT,
    "compile": Outcome.BUILD_ERROR,
    "runtime": Outcome.LAUNCH_ERROR,
    "correctness": Outcome.WRONG_RESULT,
    "constraints": Outcome.REJECTED,
}
"""Why a configuration isn't correct."""

STAGES = {
    "compilation": "compile",
    "compilation_time": "compile",
    "validation": "verification",
    "benchmark": "benchmark",
    "search_algorithm": "strategy",
    "framework": "framework",
}
"""Our name of each stage by the file's, in the file's unit of time."""

UNITS = {
    "s": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    # As some writers spell it.
    "miliseconds": 1e-3,
    "us": 1e-6,
    "microseconds": 1e-6,
    "ns": 1e-9,
    "nanoseconds": 1e-9,
}
"""Units of time, in seconds."""

DEFAULT_UNIT = "milliseconds"

TIME = "time"


def is_form(document: Mapping[str, Any]) -> bool:
    """Whether a document is a file of T4 results."""
    return "results" in document


def read(document: Mapping[str, Any], path: Path, name: str, notes: tuple[str, ...]) -> SearchSpace:
    """The space of a file of results. Raises SpaceError."""
    version = str(document.get("schema_version", MAJOR_VERSION))
    if version.partition(".")[0] != MAJOR_VERSION:
        raise SpaceError(
            f"{path} has T4's schema version {version[:20]}; only version {MAJOR_VERSION} is read."
        )
    results = document["results"]
    if not isinstance(results, list) or not all(
        isinstance(each, dict) and isinstance(each.get("configuration"), dict) for each in results
    ):
        raise SpaceError(f"{path}: 'results' must be a list of results, each with its 'configuration'.")
    if not results or not results[0]["configuration"]:
        raise SpaceError(f"{path} has no configurations.")
    names = [text_of(each, f"{path}: a parameter's name") for each in results[0]["configuration"]]
    unit = _unit(document, path)
    entries = _entries(results, names, unit, path)
    return assemble(path, Header(name, notes=notes), [Parameter(each, ()) for each in names], entries)


def _unit(document: Mapping[str, Any], path: Path) -> float:
    metadata = document.get("metadata")
    found = metadata.get("timeunit", DEFAULT_UNIT) if isinstance(metadata, dict) else DEFAULT_UNIT
    if not isinstance(found, str) or found not in UNITS:
        raise SpaceError(f"{path}: the unit of time is {found!r}, which is none of {', '.join(UNITS)}.")
    return UNITS[found]


def _entries(
    results: Sequence[dict[str, Any]], names: Sequence[str], unit: float, path: Path
) -> Iterator[Entry]:
    for number, found in enumerate(results, 1):
        what = f"{path}, result {number}"
        outcome, seconds, word = _result(found, unit, what)
        times = found.get("times", {})
        if not isinstance(times, dict):
            raise SpaceError(f"{what}: 'times' must map stages to times.")
        values = configuration(found["configuration"], names, what)
        yield Entry(values, outcome, seconds, word, stages(times, STAGES, unit, what))


def _result(found: Mapping[str, Any], unit: float, what: str) -> tuple[Outcome, float | None, str]:
    invalidity = found.get("invalidity")
    if invalidity != CORRECT:
        if not isinstance(invalidity, str) or invalidity not in INVALIDITY:
            known = ", ".join((CORRECT, *INVALIDITY))
            raise SpaceError(f"{what}: its invalidity is {invalidity!r}, which is none of {known}.")
        return INVALIDITY[invalidity], None, invalidity
    value, scale = _time(found, unit, what)
    return result(value, scale, kernel_tuner.FAILURES, what)


def _time(found: Mapping[str, Any], unit: float, what: str) -> tuple[object, float]:
    """What was measured as the time, and its unit in seconds."""
    listed = found.get("measurements")
    measured = {
        each["name"]: each
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    objectives = found.get("objectives")
    objective = objectives[0] if isinstance(objectives, list) and objectives else TIME
    if TIME in measured:
        named = measured[TIME].get("unit")
        return measured[TIME].get("value"), UNITS.get(named, unit) if isinstance(named, str) else unit
    if isinstance(objective, str) and objective in measured:
        named = measured[objective].get("unit")
        if isinstance(named, str) and named in UNITS:
            return measured[objective].get("value"), UNITS[named]
    raise SpaceError(f"{what}: it has no time; what was tuned for is {objective!r}.")
