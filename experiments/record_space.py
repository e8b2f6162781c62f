"""Record a search-space cache of a task: all combinations of its tunables, evaluated one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from pathlib import Path

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Configuration, Entry, Parameter, SearchSpace, SpaceError
from mctskernel.core.task import Task
from mctskernel.edits.rule import Limits
from mctskernel.experiments.kernel_folders import ATTEMPTS, evaluated
from mctskernel.experiments.tunables import Space, combinations, tunables, with_tunables
from mctskernel.profiling import spaces
from mctskernel.profiling.reward import is_eligible
from mctskernel.profiling.spaces import (
    CLOSING,
    entry_line,
    header_lines,
    read_document,
    read_space,
    space_name,
)
from mctskernel.run import RunError, write_text
from mctskernel.tree.trajectory import run_seconds

STAGES = {"build": "compile", "verify": "verification", "time": "benchmark"}
"""Kernel Tuner's stages by ours; everything else is its framework's."""

FRAMEWORK = "framework"

FINGERPRINT = "fingerprint"
"""The key of a cache file under which the device is described that a space is recorded on."""


@dataclass(frozen=True)
class Wanted:
    """What to record: all combinations of a kernel's tunables, or `limit` of them drawn by the seed.

    Nothing is begun after `seconds`.
    """

    kernel: Kernel
    space: Space
    limit: int | None = None
    seed: int = 0
    seconds: float = inf

    @property
    def total(self) -> int:
        """Configurations at the most."""
        whole = prod(len(values) for values in self.space.values())
        return whole if self.limit is None else min(whole, self.limit)


def record_space(
    task: Task,
    wanted: Wanted,
    out: Path,
    executor: Executor,
    follow: Callable[[str, Entry], None] = lambda _label, _entry: None,
) -> SearchSpace:
    """Evaluate configurations and write each down as soon as it is known; continue what the file holds.

    Combinations whose launch plan can't be launched are not of the space. `follow` is called with each
    entry and its configuration in words. Raises SpaceError for a file that can't be read, RunError for one of
    another task or device, and TunableError for a tunable that isn't there.
    """
    ends = time.monotonic() + wanted.seconds
    parameters = tuple(Parameter(name, tuple(values)) for name, values in wanted.space.items())
    if not parameters:
        raise SpaceError(
            f"{task.name} has nothing that could be varied: no macro, constant or option with a number."
        )
    fingerprint = executor.fingerprint()
    modelled = " (modelled)" if fingerprint.get("device") == "model" else ""
    empty = SearchSpace(
        space_name(out), parameters, (), f"{fingerprint.get('gpu', 'unknown GPU')}{modelled}", task.name
    )
    known = _begun(empty, fingerprint, out)
    header = header_lines(empty, {FINGERPRINT: fingerprint})
    write_text(out, header + ",".join(entry_line(empty.names, entry) for entry in known.values()))
    limits = Limits(task, task.search_shapes)
    tries = (
        (values, kernel)
        for values in _configurations(wanted)
        if values not in known and limits.allow(kernel := with_tunables(wanted.kernel, _named(empty, values)))
    )

    def enough(in_flight: int) -> bool:
        return len(known) + in_flight >= wanted.total or time.monotonic() >= ends

    try:
        for values, evaluation in evaluated(executor, tries, enough):
            entry = _entry(values, evaluation)
            _append(out, f"{',' if known else ''}{entry_line(empty.names, entry)}")
            known[entry.values] = entry
            follow(", ".join(f"{name}={value}" for name, value in _named(empty, values).items()), entry)
    finally:
        _append(out, CLOSING)
    if not known:
        raise SpaceError(f"No combination of the tunables of {task.name} can be launched, so {out} is empty.")
    return read_space(out)


def _begun(space: SearchSpace, fingerprint: Mapping[str, str], out: Path) -> dict[Configuration, Entry]:
    """What an earlier process recorded. Raises SpaceError, and RunError for something else."""
    if not out.exists() or not out.read_bytes().strip():
        return {}
    document, _ = read_document(out)
    if document.get("cache") == {}:
        return {}
    found = read_space(out)
    if (found.names, found.device, found.kernel, document.get(FINGERPRINT)) != (
        space.names,
        space.device,
        space.kernel,
        dict(fingerprint),
    ):
        raise RunError(
            f"{out} holds {', '.join(found.names)} of {found.kernel or 'another kernel'} on "
            f"{found.device or 'an unknown GPU'}; other parameters, tasks and devices need another --out."
        )
    return dict(found.by_values)


def _configurations(wanted: Wanted) -> Iterator[Configuration]:
    """All combinations in order, or in an order drawn by the seed where not all of them are wanted."""
    if wanted.limit is None:
        yield from product(*wanted.space.values())
        return
    start = tunables(wanted.kernel)
    drawn = combinations(wanted.kernel, wanted.space, ATTEMPTS * wanted.limit, wanted.seed)
    for number, values in enumerate(drawn):
        # The kernel as it is comes first, whether its numbers are among those to try or not.
        if number or all(start[name] in known for name, known in wanted.space.items()):
            yield tuple(values[name] for name in wanted.space)


def _named(space: SearchSpace, values: Configuration) -> dict[str, int]:
    return {name: int(value) for name, value in zip(space.names, values, strict=True)}


def _entry(values: Configuration, evaluation: Evaluation) -> Entry:
    """An evaluation as what a cache file holds. A quarantined time is a failure."""
    # Kernel Tuner wants all of them to replay a file.
    stages = dict.fromkeys(spaces.STAGES.values(), 0.0)
    for stage, seconds in evaluation.stage_seconds.items():
        name = STAGES.get(stage, FRAMEWORK)
        stages[name] += seconds
    if is_eligible(evaluation):
        return Entry(values, Outcome.OK, run_seconds(evaluation), stage_seconds=stages)
    outcome = Outcome.REJECTED if evaluation.quarantine else evaluation.outcome
    return Entry(values, outcome, word=str(outcome), stage_seconds=stages)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
