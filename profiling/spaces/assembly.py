"""From what a file says of its configurations to a search space, whatever the file's form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError, Value

NO_TIME = 1e20
"""What old versions of Kernel Tuner wrote for the time of a configuration that failed."""

LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Header:
    """What a file says of the whole space. `notes` are those of reading it."""

    name: str
    device: str = ""
    kernel: str = ""
    notes: tuple[str, ...] = ()


def assemble(
    path: Path, header: Header, parameters: Sequence[Parameter], entries: Iterable[Entry]
) -> SearchSpace:
    """The space of a file's entries. Raises SpaceError where there is none.

    Values that entries have and their parameter doesn't are added to it. Of a configuration that occurs more than
    once, the first counts.
    """
    found, repeated, contradictory = _unique(entries)
    if not found:
        raise SpaceError(f"{path} has no configurations.")
    values = [
        dict.fromkeys((*parameter.values, *(entry.values[place] for entry in found)))
        for place, parameter in enumerate(parameters)
    ]
    # Equal values are written alike everywhere (1 and 1.0 are equal), so that a configuration is one text.
    written = [{value: value for value in each} for each in values]
    notes = [*header.notes]
    if repeated:
        notes.append(f"{path}: {repeated} configurations occur again, the same; the first of each is kept.")
    if contradictory:
        notes.append(
            f"{path}: {contradictory} configurations occur again with another result; the first of each is kept."
        )
    return SearchSpace(
        name=header.name,
        parameters=tuple(
            Parameter(each.name, tuple(known)) for each, known in zip(parameters, values, strict=True)
        ),
        entries=tuple(
            Entry(
                tuple(known[value] for known, value in zip(written, entry.values, strict=True)),
                entry.outcome,
                entry.seconds,
                entry.word,
                entry.stage_seconds,
            )
            for entry in found
        ),
        device=_printable(header.device),
        kernel=_printable(header.kernel),
        notes=tuple(notes),
    )


def result(
    time: object, scale: float, words: Mapping[str, Outcome], what: str
) -> tuple[Outcome, float | None, str]:
    """What a time, or the word in its place, comes to: outcome, seconds, and the word of a failure.

    `scale` is the file's unit in seconds; `what` begins the sentence of a SpaceError.
    """
    if isinstance(time, str):
        if time not in words:
            raise SpaceError(f"{what}: {time!r} is no failure that is known ({', '.join(words)}).")
        return words[time], None, time
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise SpaceError(f"{what}: its time is {time!r}, which is neither a number nor a failure.")
    if not time < NO_TIME:
        return Outcome.CRASH, None, repr(time)[:20]
    if time <= 0 or time * scale <= 0:
        raise SpaceError(f"{what}: its time is {time!r}, which is not above 0.")
    return Outcome.OK, time * scale, ""


def configuration(found: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[Value, ...]:
    """The values of a configuration. Raises SpaceError for one that lacks a parameter, or holds more than a value."""
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise SpaceError(f"{what}: the parameter {missing!r} is missing.")
    return tuple(value_of(found[name], f"{what}: {name!r}") for name in names)


def value_of(found: object, what: str) -> Value:
    """A value that a parameter may have. Raises SpaceError for anything else."""
    if isinstance(found, str):
        return text_of(found, what)
    if isinstance(found, bool) or (isinstance(found, int) and abs(found) <= LARGEST):
        return found
    if isinstance(found, float) and math.isfinite(found):
        return found
    raise SpaceError(f"{what} is {_short(found)}; values must be numbers, booleans or strings.")


def text_of(found: object, what: str) -> str:
    """A text that can be written down. Raises SpaceError for anything else."""
    if isinstance(found, str) and _printable(found) == found:
        return found
    raise SpaceError(f"{what} is {_short(found)}, which is no text.")


def stages(found: Mapping[str, Any], names: Mapping[str, str], scale: float, what: str) -> dict[str, float]:
    """What the stages of a measurement took, in seconds, by our names; `names` are ours by the file's.

    What the file doesn't say is left out; a timer that ran backwards took nothing.
    """
    taken: dict[str, float] = {}
    for theirs, ours in names.items():
        value = found.get(theirs)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < NO_TIME:
            raise SpaceError(f"{what}: {theirs!r} is {_short(value)}, which is no time.")
        taken[ours] = max(0.0, value * scale)
    return taken


def _unique(entries: Iterable[Entry]) -> tuple[list[Entry], int, int]:
    """The first entry of each configuration, how many more agree with theirs, and how many don't."""
    kept: dict[tuple[Value, ...], Entry] = {}
    repeated = contradictory = 0
    for entry in entries:
        first = kept.setdefault(entry.values, entry)
        if first is entry:
            continue
        if (first.outcome, first.seconds) == (entry.outcome, entry.seconds):
            repeated += 1
        else:
            contradictory += 1
    return list(kept.values()), repeated, contradictory


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _short(found: object) -> str:
    return repr(found)[:60]
