"""What a figure is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mctskernel.report.compared_run import ComparedRun, Ground
from mctskernel.report.document import Document, view_document
from mctskernel.run import RunError
from mctskernel.tree.trajectory import run_seconds


@dataclass(frozen=True)
class PlottedRun:
    """A run with a short name, and that of its side where several runs are one line."""

    run: ComparedRun
    name: str
    side: str

    @cached_property
    def document(self) -> Document:
        """What graphical hosts show of it. Raises JournalError and EvidenceError."""
        return view_document(self.run.view)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.run.view.manifest.configuration.task

    @property
    def device(self) -> str:
        """Where its kernels were timed."""
        return self.run.device


def by_ground(runs: Sequence[PlottedRun]) -> list[tuple[str, list[PlottedRun]]]:
    """The runs whose times may be compared, which share a panel, with what tells each such group from the others."""
    found: dict[Ground, list[PlottedRun]] = {}
    for run in runs:
        found.setdefault(run.run.ground, []).append(run)
    devices = len({ground.device for ground in found})
    return [
        (f"{each[0].task}\n{each[0].device}" if devices > 1 else each[0].task, each)
        for each in found.values()
    ]


def start_factors(runs: Sequence[PlottedRun]) -> dict[str, float]:
    """What to multiply speed-ups with so that all are over the first run's starting kernel, by name."""
    first = runs[0].run
    start = run_seconds(first.start) if first.start else None
    factors = {}
    for each in runs:
        own = run_seconds(each.run.start) if each.run.start else None
        same = each.run.starting_kernel == first.starting_kernel
        factors[each.name] = start / own if start and own and not same else 1.0
    return factors


def by_device(runs: Sequence[PlottedRun]) -> dict[str, list[PlottedRun]]:
    """The runs of each device, in order of appearance."""
    found: dict[str, list[PlottedRun]] = {}
    for run in runs:
        found.setdefault(run.device, []).append(run)
    return found


def the_only(runs: Sequence[PlottedRun], what: str) -> PlottedRun:
    """The one run of a figure that shows one. Raises RunError for several."""
    if len(runs) != 1:
        raise RunError(f"{what} is drawn of one run, not of {len(runs)}: name the one.")
    return runs[0]
