"""Steps from a kernel to one made of it: what they relieved, by counters, what they gained, and what came after them.

A proxy says of a kernel's counters what is bad about it, as one number that doesn't hold the kernel's time. A step
relieves a proxy by as much as the number falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Evaluation, Outcome, Resources, Source, Timing
from mctskernel.core.task_file import load_task
from mctskernel.experiments.variants import LINES, Variant, read_variants
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import diagnose_counters
from mctskernel.profiling.reward import first_bottleneck_relief, is_eligible
from mctskernel.report.view import load_view
from mctskernel.run import RunFolder
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import run_seconds

DIGITS = 5

AROUND = 2
"""Tunables in which what could come after a variant differs from it, at the most."""

CATEGORIES: Mapping[str, Category] = {
    "BLOCK": Category.LAUNCH,
    "WARPS": Category.LAUNCH,
    "num_warps": Category.LAUNCH,
    "GROUP": Category.LAUNCH,
    "VECTOR": Category.VECTORIZATION,
    "UNROLL": Category.UNROLLING,
    "ROWS": Category.COARSENING,
    "ITEMS": Category.COARSENING,
    "FRAGMENTS": Category.REGISTER_BLOCKING,
    "DEPTH": Category.SHARED_TILING,
    "PAD": Category.BANK_CONFLICTS,
    "AHEAD": Category.ASYNC_COPY,
    "num_stages": Category.ASYNC_COPY,
    "STREAM": Category.COMPILER_HINTS,
    "COPIES": Category.PARALLELISM,
    "KIND": Category.ALGORITHM,
    "SKIP": Category.ALGORITHM,
    "LATE": Category.ALGORITHM,
}
"""What kind of edit a change of a family's tunable is, by the beginning of its name."""


class Step(msgspec.Struct, frozen=True):
    """A kernel and one made of it by an edit, both right and timed.

    `search` is the run or the family, `task` what it is of, `source` where its numbers come from, `category` that of
    the edit. `seconds` are the child's, `gain` the logarithm of the parent's over them. `ahead` is the logarithm of the
    child's time over the best of the `after` kernels that came of it, above 0 where one was faster; None where none
    did: its descendants in a `grown` tree, or the variants of its family that are near it. `reliefs` are by proxy,
    `moves` by counter.
    """

    search: str
    task: str
    source: Source
    category: Category
    seconds: float
    gain: float
    ahead: float | None
    after: int
    grown: bool
    reliefs: dict[str, float]
    moves: dict[str, float]


def steps_of(folder: Path) -> Iterator[Step]:
    """The steps of a run, of the families of a folder of variants, or of all of either in a folder.

    Raises RunError, JournalError and VariantError.
    """
    if (folder / LINES).is_file():
        yield from _of_families(folder)
    elif RunFolder(folder).manifest.exists():
        yield from _of_run(folder)
    else:
        for each in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from steps_of(each)


@dataclass(frozen=True)
class _Measured:
    """A kernel that may be an answer, and the whole plan's seconds."""

    evaluation: Evaluation
    seconds: float


@dataclass(frozen=True)
class _Origin:
    """What the steps of one search or family share."""

    search: str
    task: str
    compulsory_bytes: int
    grown: bool

    def step(self, category: Category, parent: _Measured, child: _Measured, after: Sequence[float]) -> Step:
        """A step, and the times of what came after it."""
        return Step(
            search=self.search,
            task=self.task,
            source=child.evaluation.source,
            category=category,
            seconds=child.seconds,
            gain=round(math.log(parent.seconds / child.seconds), DIGITS),
            ahead=round(math.log(child.seconds / min(after)), DIGITS) if after else None,
            after=len(after),
            grown=self.grown,
            reliefs=_rounded(reliefs(parent.evaluation, child.evaluation, self.compulsory_bytes)),
            moves=_rounded(moves(parent.evaluation, child.evaluation)),
        )


def _of_run(folder: Path) -> Iterator[Step]:
    view = load_view(folder)
    tree, task = view.tree, view.folder.load_task()
    compulsory = task.compulsory_bytes(task.search_shapes[0])
    measured = {node.id: found for node in tree.nodes if (found := _measured(node.evaluation)) is not None}
    after = _fastest_after(tree, {node: each.seconds for node, each in measured.items()})
    configuration = view.manifest.configuration
    name = Path(configuration.task).name
    search = f"{name}-{configuration.language}-{view.manifest.created}"
    origin = _Origin(search, name, compulsory, grown=True)
    for number, child in measured.items():
        node = tree.nodes[number]
        if node.parent is None or node.edit is None or node.parent not in measured:
            continue
        category = tree.nodes[node.parent].edits[node.edit].category
        yield origin.step(category, measured[node.parent], child, after[number])


def _fastest_after(tree: Tree, seconds: Mapping[int, float]) -> dict[int, list[float]]:
    """The times of the descendants of each node. Parents come before their children."""
    found: dict[int, list[float]] = {node.id: [] for node in tree.nodes}
    for node in reversed(tree.nodes):
        if node.parent is not None:
            own = [seconds[node.id]] if node.id in seconds else []
            found[node.parent] += [*own, *found[node.id]]
    return found


def _of_families(folder: Path) -> Iterator[Step]:
    families: dict[str, list[Variant]] = {}
    for variant in read_variants(folder):
        if variant.outcome is Outcome.OK and variant.us and variant.ncu:
            families.setdefault(variant.family, []).append(variant)
    for family, variants in families.items():
        yield from _of_family(folder, family, variants)


def _of_family(folder: Path, family: str, variants: Sequence[Variant]) -> Iterator[Step]:
    """Both ways between variants that differ in one tunable; what could come after differs in few more."""
    task = load_task(folder / variants[0].task, variants[0].language)
    compulsory = task.compulsory_bytes(variants[0].shape or task.search_shapes[0])
    origin = _Origin(family, family.rpartition("_")[0] or family, compulsory, grown=False)
    measured = [_of_variant(variant) for variant in variants]
    for first, parent in zip(variants, measured, strict=True):
        for second, child in zip(variants, measured, strict=True):
            changed = _changed(first, second)
            if len(changed) != 1:
                continue
            after = [
                other.seconds
                for variant, other in zip(variants, measured, strict=True)
                if variant is not first and 0 < len(_changed(second, variant)) <= AROUND
            ]
            yield origin.step(category_of(changed[0]), parent, child, after)


def category_of(tunable: str) -> Category:
    """What kind of edit a change of a tunable is."""
    known = (kind for name, kind in CATEGORIES.items() if tunable.startswith(name))
    return next(known, Category.TUNING)


def _changed(first: Variant, second: Variant) -> list[str]:
    return [name for name, value in first.tunables.items() if second.tunables.get(name) != value]


def _of_variant(variant: Variant) -> _Measured:
    seconds = (variant.us or 0.0) * 1e-6
    # Variants know their local memory alone: what doesn't fit into registers is in there.
    spilled = Resources("", variant.registers, variant.shared_bytes, variant.local_bytes)
    evaluation = Evaluation(
        Outcome.OK,
        Source.RECORDED,
        timings=(Timing("", seconds, seconds, seconds),),
        counters=variant.ncu,
        resources=(spilled,),
    )
    return _Measured(evaluation, seconds)


def _measured(evaluation: Evaluation | None) -> _Measured | None:
    if evaluation is None or not is_eligible(evaluation):
        return None
    seconds = run_seconds(evaluation)
    return _Measured(evaluation, seconds) if seconds else None


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
