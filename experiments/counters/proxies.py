"""What counters say is bad about a kernel, each as one number that doesn't hold the kernel's time.

A step from a kernel to one made of it relieves a proxy by what the number falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from mctskernel.core.evaluation import Evaluation
from mctskernel.profiling import counters as names
from mctskernel.profiling.counter_diagnosis import diagnose_counters
from mctskernel.profiling.reward import first_bottleneck_relief

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
"""Counters whose ratio child over parent is told by category of edit."""


def moves(parent: Evaluation, child: Evaluation) -> dict[str, float]:
    """The logarithm of child over parent of each counter that neither of them has at 0."""
    return {
        label: math.log(child.counters[name] / parent.counters[name])
        for label, name in MOVED.items()
        if parent.counters.get(name, 0.0) > 0 and child.counters.get(name, 0.0) > 0
    }


def _spills(evaluation: Evaluation) -> bool:
    return any(each.spill_store_bytes or each.spill_load_bytes for each in evaluation.resources)
