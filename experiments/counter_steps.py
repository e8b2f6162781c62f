"""Steps from a kernel to one made of it: what they relieved, by counters, what they gained, and what came after them.

A proxy says of a kernel's counters what is bad about it, as one number that doesn't hold the kernel's time. A step
relieves a proxy by as much as the number falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import diagnose_counters
from mctskernel.profiling.reward import first_bottleneck_relief, is_eligible
from mctskernel.report.view import load_view
from mctskernel.run import RunFolder
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import run_seconds

DIGITS = 5


class Step(msgspec.Struct, frozen=True):
    """A kernel and one made of it by an edit, both right and timed.

    `search` is the run, `task` what it is of, `source` where its numbers come from, `category` that of the edit.
    `seconds` are the child's, `gain` the logarithm of the parent's over them. `ahead` is the logarithm of the child's
    time over the best of its `after` descendants, above 0 where one was faster; None where there is none. `reliefs`
    are by proxy, `moves` by counter.
    """

    search: str
    task: str
    source: Source
    category: Category
    seconds: float
    gain: float
    ahead: float | None
    after: int
    reliefs: dict[str, float]
    moves: dict[str, float]


def steps_of(folder: Path) -> Iterator[Step]:
    """The steps of a run, or of all runs in a folder. Raises RunError and JournalError."""
    if not RunFolder(folder).manifest.exists():
        for each in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from steps_of(each)
        return
    view = load_view(folder)
    tree, task = view.tree, view.folder.load_task()
    compulsory = task.compulsory_bytes(task.search_shapes[0])
    seconds = {node.id: time for node in tree.nodes if (time := _seconds(node.evaluation)) is not None}
    after = _times_after(tree, seconds)
    configuration = view.manifest.configuration
    name = Path(configuration.task).name
    for number, time in seconds.items():
        node = tree.nodes[number]
        if node.parent is None or node.edit is None or node.parent not in seconds:
            continue
        parent = tree.nodes[node.parent]
        before, evaluation = parent.evaluation, node.evaluation
        assert before is not None and evaluation is not None  # noqa: S101 - both have a time
        yield Step(
            search=f"{name}-{configuration.language}-{view.manifest.created}",
            task=name,
            source=evaluation.source,
            category=parent.edits[node.edit].category,
            seconds=time,
            gain=round(math.log(seconds[parent.id] / time), DIGITS),
            ahead=round(math.log(time / min(after[number])), DIGITS) if after[number] else None,
            after=len(after[number]),
            reliefs=_rounded(reliefs(before, evaluation, compulsory)),
            moves=_rounded(moves(before, evaluation)),
        )


def _times_after(tree: Tree, seconds: Mapping[int, float]) -> dict[int, list[float]]:
    """The times of the descendants of each node. Parents come before their children."""
    found: dict[int, list[float]] = {node.id: [] for node in tree.nodes}
    for node in reversed(tree.nodes):
        if node.parent is not None:
            own = [seconds[node.id]] if node.id in seconds else []
            found[node.parent] += [*own, *found[node.id]]
    return found


def _seconds(evaluation: Evaluation | None) -> float | None:
    """The whole plan's seconds of a kernel that may be an answer."""
    return run_seconds(evaluation) if evaluation is not None and is_eligible(evaluation) else None


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in values.items()}


Counters = Mapping[str, float]

STALLS = (
    names.STALL_LONG_SCOREBOARD,
    names.STALL_BARRIER,
    names.STALL_SHORT_SCOREBOARD,
    names.STALL_LG_THROTTLE,
)

TENSOR_USED = 1.0
"""Percent of the tensor pipes' time above which a kernel counts as one that uses them."""

BOTTLENECK = "the parent's first bottleneck"
SPILLS = "register spills"


def traffic(counters: Counters, compulsory_bytes: int) -> float | None:
    """The logarithm of the bytes that cross DRAM's pins over those that have to; 0 where L2 kept some of them."""
    moved = counters.get(names.DRAM_BYTES) or counters.get(names.DRAM_READ, 0.0) + counters.get(
        names.DRAM_WRITE, 0.0
    )
    return math.log(max(moved / compulsory_bytes, 1.0)) if moved and compulsory_bytes else None


def sectors_per_request(counters: Counters, _: int) -> float | None:
    """The logarithm of sectors of 32 bytes a global load or store of a warp."""
    sectors, requests = (
        sum(counters.get(name, 0.0) for name in pair)
        for pair in (
            (names.LOAD_SECTORS, names.STORE_SECTORS),
            (names.LOAD_REQUESTS, names.STORE_REQUESTS),
        )
    )
    return math.log(sectors / requests) if sectors and requests else None


def bank_conflicts(counters: Counters, _: int) -> float | None:
    """The share of shared memory's cycles that are conflicts."""
    if names.SHARED_WAVEFRONTS not in counters or names.BANK_CONFLICTS not in counters:
        return None
    wavefronts = counters[names.SHARED_WAVEFRONTS]
    return min(counters[names.BANK_CONFLICTS] / wavefronts, 1.0) if wavefronts else 0.0


def exposed_latency(counters: Counters, _: int) -> float | None:
    """The share of the schedulers' cycles in which nothing is issued for warps wait for global memory."""
    stalled = sum(counters.get(name, 0.0) for name in STALLS)
    if names.ISSUE_ACTIVE not in counters or not stalled:
        return None
    idle = 1.0 - counters[names.ISSUE_ACTIVE] / 100.0
    return idle * counters.get(names.STALL_LONG_SCOREBOARD, 0.0) / stalled


def idle_tensor_pipes(counters: Counters, _: int) -> float | None:
    """The share of the time in which the tensor pipes stand still; nothing is known of a kernel without them."""
    busy = counters.get(names.TENSOR_BUSY, 0.0)
    return 1.0 - busy / 100.0 if busy >= TENSOR_USED else None


def tail(counters: Counters, _: int) -> float | None:
    """The share of the multiprocessors' time in which they have no work."""
    return 1.0 - counters[names.SM_ACTIVE] / 100.0 if names.SM_ACTIVE in counters else None


COUNTED: Mapping[str, Callable[[Counters, int], float | None]] = {
    "DRAM traffic above the compulsory": traffic,
    "sectors a request": sectors_per_request,
    "bank conflicts": bank_conflicts,
    "exposed latency": exposed_latency,
    "idle tensor pipes": idle_tensor_pipes,
    "tail": tail,
}
"""By the names that tables have. Each takes counters and the task's compulsory bytes."""

PROXIES = (BOTTLENECK, SPILLS, *COUNTED)


def reliefs(parent: Evaluation, child: Evaluation, compulsory_bytes: int) -> dict[str, float]:
    """What a step relieved, by proxy; below 0 where it made it worse. A proxy that one of the two lacks is left out.

    Of the parent's first bottleneck it is the fraction that is gone, from 0 to 1, as the reward has it; of spills it
    is 1 where they went, -1 where they came.
    """
    found = {SPILLS: float(_spills(parent) - _spills(child))}
    if parent.counters and child.counters:
        before, after = (
            replace(each, diagnosis=diagnose_counters(each.counters)) for each in (parent, child)
        )
        found[BOTTLENECK] = first_bottleneck_relief(after, before)
    for name, badness in COUNTED.items():
        values = [badness(each.counters, compulsory_bytes) for each in (parent, child)]
        if values[0] is not None and values[1] is not None:
            found[name] = values[0] - values[1]
    return found


MOVED = {
    "DRAM bytes": names.DRAM_BYTES,
    "L2 sectors": names.L2_SECTORS,
    "load sectors": names.LOAD_SECTORS,
    "sectors a load": names.SECTORS_PER_LOAD,
    "shared wavefronts": names.SHARED_WAVEFRONTS,
    "bank conflicts": names.BANK_CONFLICTS,
    "instructions": names.INSTRUCTIONS,
    "issue active": names.ISSUE_ACTIVE,
    "warps active": names.WARPS_ACTIVE,
    "tensor pipes busy": names.TENSOR_BUSY,
    "waits for global memory": names.STALL_LONG_SCOREBOARD,
    "waits at barriers": names.STALL_BARRIER,
    "SM active": names.SM_ACTIVE,
}
"""Counters whose ratio child over parent is reported by category of edit."""


def moves(parent: Evaluation, child: Evaluation) -> dict[str, float]:
    """The logarithm of child over parent of each counter that neither of them has at 0."""
    return {
        label: math.log(child.counters[name] / parent.counters[name])
        for label, name in MOVED.items()
        if parent.counters.get(name, 0.0) > 0 and child.counters.get(name, 0.0) > 0
    }


def _spills(evaluation: Evaluation) -> bool:
    return any(each.spill_store_bytes or each.spill_load_bytes for each in evaluation.resources)
