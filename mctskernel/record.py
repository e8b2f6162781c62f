"""Make folders of kernels whose times are known: from a kernel's tunables, from edits, or from a recorded run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.edits.limits import Limits
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.reward import is_eligible
from mctskernel.recorded_folder import Entry, Origin, RecordedFolder
from mctskernel.report.view import View
from mctskernel.run import RunError
from mctskernel.tunables import Space, combinations
from mctskernel.variants import LINES, Variant, code, variants_of

ATTEMPTS = 20
"""How many values of the tunables are looked at for each kernel that is wanted; most that can't run cost nothing."""

UNFRUITFUL = 100
"""Edits that make nothing new, in a row, after which no more are tried."""

EDIT = "edit"
"""What the names of kernels that edits made begin with."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Wanted:
    """What to record of a task: `limit` kernels with a time from a space of tunables, `edits` more from its edits.

    Nothing is begun after `seconds`. An empty `family` is the task in its language.
    """

    kernel: Kernel
    space: Space
    limit: int
    edits: int = 0
    seed: int = 0
    seconds: float = math.inf
    family: str = ""


def record(
    task: Task,
    wanted: Wanted,
    out: Path,
    executor: Executor,
    *,
    command: str = "",
    follow: Callable[[Variant], None] = lambda _: None,
) -> None:
    """Judge kernels of a task and write them down, each as soon as it is known; goes on with what is there.

    Raises RunError for a folder of another task or device, and TunableError for a tunable that isn't there.
    """
    ends = time.monotonic() + wanted.seconds
    folder = RecordedFolder(out, task, Origin(task.name, command, executor.fingerprint()), follow)

    def enough(wanted_count: int, of: Callable[[Entry], bool]) -> Callable[[int], bool]:
        return lambda in_flight: (
            time.monotonic() >= ends or sum(map(of, folder.timed.values())) + in_flight >= wanted_count
        )

    tuned = enough(wanted.limit, lambda entry: not is_edit(entry))
    edited = enough(wanted.edits, is_edit)
    try:
        _judge(executor, _by_tunables(wanted, folder), folder, wanted.family, tuned)
        _judge(executor, _by_edits(wanted, folder), folder, wanted.family, edited)
    finally:
        folder.write_readme()


def record_run(run: View, out: Path, limit: int, *, command: str = "") -> int:
    """Make a folder of at most `limit` of a run's measured kernels, spread over their times; says how many.

    Raises RunError.
    """
    run.refuse_recorded()
    task, manifest = run.folder.load_task(), run.manifest
    if (out / LINES).exists():
        raise RunError(f"{out} already holds variants: choose another --out.")
    found: dict[Hashable, tuple[Entry, Evaluation]] = {}
    for node in run.tree.nodes:
        if node.evaluation is not None and is_eligible(node.evaluation):
            entry = Entry(f"node {node.id}", Kernel(run.source(node.id), manifest.configuration.language))
            line = variants_of(task, entry.kernel, node.evaluation, name=entry.name)[0]
            found.setdefault(code(task, entry.kernel, line), (entry, node.evaluation))
    if not found:
        raise RunError(f"{run.folder.path} has no measured kernel to record.")
    folder = RecordedFolder(out, task, Origin(task.name, command, manifest.fingerprint))
    chosen = spread(found.values(), limit, lambda each: _log_time(each[1]))
    for entry, evaluation in chosen:
        folder.add(entry, evaluation)
    folder.write_readme()
    return len(chosen)


def spread(items: Iterable[Item], limit: int, size: Callable[[Item], float]) -> list[Item]:
    """At most `limit` items whose sizes lie as evenly as can be from the least to the greatest, in order."""
    rest = sorted(items, key=size)
    if len(rest) <= limit:
        return rest
    chosen: list[Item] = []
    for target in np.linspace(size(rest[0]), size(rest[-1]), limit):
        distances = [abs(size(each) - target) for each in rest]
        chosen.append(rest.pop(distances.index(min(distances))))
    return sorted(chosen, key=size)


def _log_time(evaluation: Evaluation) -> float:
    return math.fsum(math.log(timing.seconds) for timing in evaluation.timings)


def _judge(
    executor: Executor,
    tries: Iterator[Entry],
    folder: RecordedFolder,
    family: str,
    enough: Callable[[int], bool],
) -> None:
    """Judge one try after another; `enough` says whether to begin no more while so many are in flight."""
    in_flight: dict[int, Entry] = {}
    tickets = count()
    while True:
        while len(in_flight) < executor.capacity and not enough(len(in_flight)):
            entry = next(tries, None)
            if entry is None:
                break
            ticket = next(tickets)
            in_flight[ticket] = entry
            executor.submit(ticket, entry.kernel)
        if not in_flight:
            return
        for ticket, evaluation in executor.wait():
            folder.add(in_flight.pop(ticket), evaluation, family)


def _by_tunables(wanted: Wanted, folder: RecordedFolder) -> Iterator[Entry]:
    """The kernel as it is, then with other numbers."""
    task = folder.task
    limits = Limits(task, task.search_shapes)
    for values in combinations(wanted.kernel, wanted.space, ATTEMPTS * wanted.limit, wanted.seed):
        label = ", ".join(f"{name}={value}" for name, value in values.items())
        entry = Entry(label or "as it is", wanted.kernel, values)
        if limits.allow(entry.kernel) and not folder.holds(entry.kernel):
            yield entry


def _by_edits(wanted: Wanted, folder: RecordedFolder) -> Iterator[Entry]:
    """Edits of the rule library, each of the kernel as it is or of one that edits made, at random."""
    rng = np.random.default_rng((wanted.seed, len(folder.timed)))
    proposer, task = RuleProposer(), folder.task
    proposed: dict[str, list[Edit]] = {}
    begun: set[str] = set()
    unfruitful = 0
    while unfruitful < UNFRUITFUL:
        parents = [wanted.kernel, *(each.kernel for each in folder.timed.values() if is_edit(each))]
        parent = parents[rng.integers(len(parents))]
        if parent.identity not in proposed:
            request = ProposalRequest(task, parent, Evaluation(Outcome.OK, Source.RECORDED))
            proposed[parent.identity] = list(proposer.propose(request).edits)
        edits = proposed[parent.identity]
        unfruitful += 1
        if not edits:
            continue
        edit = edits.pop(int(rng.integers(len(edits))))
        kernel = apply(parent, edit)
        if kernel.identity not in begun and not folder.holds(kernel):
            begun.add(kernel.identity)
            unfruitful = 0
            yield Entry(f"{EDIT} {kernel.identity[:8]}: {edit.title}", kernel)


def is_edit(entry: Entry) -> bool:
    """Whether an edit made a kernel, and not tunables."""
    return entry.name.startswith(f"{EDIT} ")
