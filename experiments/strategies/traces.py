"""What searches of recorded spaces found, one line of JSON a search, and the share of the optimum that it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.records.json_lines import LineLog, read_lines

CHECKPOINTS = (50, 100, 200)
"""Evaluations after which shares are told."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One search: `share` is optimum time over best time so far, by the number of evaluations that it took.

    `improvements` are pairs of an evaluation's number, from 1, and the share from then on; nothing before the first
    success. `evaluations` were made, failures included, with at the most `in_flight` at a time. `seconds` of one core
    it took, and `virtual_seconds` the recorded evaluations would have taken. `code` tells versions of the searching
    code apart.
    """

    space: str
    contender: str
    seed: int
    in_flight: int = 1
    evaluations: int
    failures: int = 0
    improvements: tuple[tuple[int, float], ...] = ()
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    code: str = ""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What no two traces of a file share."""
        return self.space, self.contender, self.seed, self.in_flight

    def share(self, evaluations: int) -> float:
        """The share of the optimum after so many evaluations; 0 before any success."""
        return max((share for number, share in self.improvements if number <= evaluations), default=0.0)


def improvements(times: Sequence[float | None], optimum: float) -> tuple[tuple[int, float], ...]:
    """Of times in the order of their evaluation, None for a failure: those that were the best yet, as shares."""
    found: list[tuple[int, float]] = []
    best = float("inf")
    for number, time in enumerate(times, 1):
        if time is not None and time < best:
            best = time
            found.append((number, optimum / time))
    return tuple(found)


def read_traces(path: Path) -> list[Trace]:
    """The traces of a file; none where there is no file. A torn last line is left out. Raises LineError."""
    return read_lines(path, msgspec.json.Decoder(Trace))


class TraceLog:
    """A file of traces, open for appending; a line that another process was writing when it died is cut off."""

    def __init__(self, path: Path) -> None:
        self.done = {trace.key for trace in read_traces(path)}
        self._log = LineLog[Trace](path)

    def append(self, trace: Trace) -> None:
        """Keeps a trace: in the file when this returns."""
        self._log.append(trace)
        self.done.add(trace.key)


def shares(traces: Iterable[Trace], evaluations: int) -> Array:
    """The share of each trace."""
    return np.array([trace.share(evaluations) for trace in traces])


def by_space(traces: Iterable[Trace]) -> Mapping[str, list[Trace]]:
    """Traces by the name of their space, names in order."""
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        found.setdefault(trace.space, []).append(trace)
    return dict(sorted(found.items()))
