"""What the model says of every kernel of recorded spaces, and what it cost to say so: one JSON object a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from mctskernel.core.surrogate import Prediction
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.surrogate import PricingDevice, prediction_of

Known = Mapping[str, Prediction | None]
"""Predictions of a space by the identity of a kernel; None where the model has no opinion."""


class Predicted(msgspec.Struct, frozen=True):
    """What the model said of a kernel: seconds, None where it has no opinion, and its terms.

    `cpu_seconds` are what the prediction took of a core, compilers and disassemblers that it started included.
    """

    space: str
    kernel: str
    seconds: float | None
    terms: dict[str, float]
    cpu_seconds: float = 0.0

    @property
    def prediction(self) -> Prediction | None:
        """As a search gets it."""
        return Prediction(self.seconds, self.terms) if self.seconds else None


def predict(spaces: Iterable[RecordedSpace], architecture: str, cache: Path) -> Iterator[Predicted]:
    """A row for every kernel of the spaces. What the file has is read; what it lacks is priced and appended at once."""
    gpu = load_architecture(architecture)
    known = {(row.space, row.kernel): row for row in read_predictions(cache)}
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("ab") as file:
        file.truncate(len(_whole_lines(cache)))
        for space in spaces:
            task, device = space.task, PricingDevice(space.task, gpu)
            for identity in space.evaluations:
                row = known.get((space.name, identity))
                if row is None:
                    if (judged_by := space.tasks.get(identity, task)) is not task:
                        task, device = judged_by, PricingDevice(judged_by, gpu)
                    row = _priced(space, identity, device)
                    file.write(msgspec.json.encode(row) + b"\n")
                    file.flush()
                yield row


def read_predictions(path: Path) -> list[Predicted]:
    """The rows of a file, a torn last line aside; none where there is no file."""
    lines = _whole_lines(path).splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Predicted) for line in lines]


def by_space(rows: Iterable[Predicted]) -> dict[str, dict[str, Prediction | None]]:
    """Predictions by the name of a space."""
    found: dict[str, dict[str, Prediction | None]] = {}
    for row in rows:
        found.setdefault(row.space, {})[row.kernel] = row.prediction
    return found


def _priced(space: RecordedSpace, identity: str, device: PricingDevice) -> Predicted:
    began = _cpu_seconds()
    found = prediction_of(device.evaluate(space.kernels[identity]))
    spent = _cpu_seconds() - began
    seconds, terms = (found.seconds, dict(found.terms)) if found else (None, {})
    return Predicted(space.name, identity, seconds, terms, spent)


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _whole_lines(file: Path) -> bytes:
    content = file.read_bytes()
    return content[: content.rfind(b"\n") + 1]
