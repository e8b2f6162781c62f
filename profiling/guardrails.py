"""Guardrails on evaluations: times that are not believed, kernels that are refused, and remarks on what looks bad.

`mctskernel.profiling.source_rules` has the rules that refuse a kernel before it is built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mctskernel.core.evaluation import Check, Evaluation, Guard, Timing
from mctskernel.core.expression import evaluate
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.profiling.comparable import timings_beside
from mctskernel.profiling.ptx_text import without_comments

NOISE = 0.02
"""The fraction by which two medians of the same kernel may differ: differences below it mean nothing."""

MAX_REGISTERS = 255
BELIEVABLE = 0.95
"""A time below this fraction of the floor is not believed. The rest covers the clock's resolution."""

MAX_OUTSIDE = 0.5
"""The largest fraction of a plan's time that may pass outside the candidate's own kernels."""

LAUNCH_SECONDS = 5e-6
"""What one launch may take besides its kernel: it is no sign of work done elsewhere. Of many launches together no more
than that and their kernels' time, so that empty ones are no cover for it."""


@dataclass(frozen=True)
class Peaks:
    """What a GPU can do at most for one kernel: bytes per second, operations per second, L2 bytes."""

    dram_bytes_per_second: float
    flops_per_second: float
    l2_bytes: int


@dataclass(frozen=True)
class Guardrail:
    """A rule that remarks on an evaluation, given its parent's: one sentence for each thing it finds."""

    name: str
    remarks: Callable[[Evaluation, Evaluation | None], Sequence[str]]


def flags(evaluation: Evaluation, parent: Evaluation | None = None) -> tuple[str, ...]:
    """The remarks of every guardrail. They refuse nothing; rewards and people read them."""
    return tuple(remark for rule in GUARDRAILS for remark in rule.remarks(evaluation, parent))


def floor_seconds(task: Task, shape: Shape, peaks: Peaks) -> float:
    """The least time that any kernel of the task can take at one shape, from the roofline.

    Inputs come from DRAM, since L2 holds none of them when the clock starts; of the outputs, as much as L2
    holds may still be on its way to DRAM when it stops. A task's `flops` are those of the plain algorithm: one that
    needs fewer (Strassen, Winograd) may beat this floor. Williams, Waterman and Patterson, "Roofline", 2009.
    """
    read = sum(tensor.nbytes(shape) for tensor in task.inputs)
    written = sum(tensor.nbytes(shape) for tensor in task.outputs)
    traffic = read + max(0, written - peaks.l2_bytes)
    flops = float(evaluate(task.flops, {**task.scalars, **shape})) if task.flops is not None else 0.0
    return max(traffic / peaks.dram_bytes_per_second, flops / peaks.flops_per_second)


def quarantine_reason(task: Task, timings: Sequence[Timing], peaks: Peaks) -> str:
    """Why the timings, one for each search shape in their order, are not believed; empty when they are."""
    for shape, timing in zip(task.search_shapes, timings, strict=True):
        floor = floor_seconds(task, shape, peaks)
        if not math.isfinite(timing.seconds) or timing.seconds <= 0:
            return f"At {shape_label(shape)} the time is {timing.seconds} s, which is no time."
        if timing.seconds < BELIEVABLE * floor:
            return (
                f"At {shape_label(shape)} the kernel took {timing.seconds * 1e6:.1f} us, but moving the data "
                f"and doing the arithmetic takes at least {floor * 1e6:.1f} us: it can't have done the work."
            )
    return ""


def outside_reason(seconds: float, kernel_seconds: Sequence[float]) -> str:
    """Why a plan is refused whose time is spent elsewhere; empty when it isn't.

    `seconds` is the time of the whole plan, `kernel_seconds` that of each of its kernels alone (the counter
    `gpu__time_duration.sum`), both on a cold cache.
    """
    own = math.fsum(kernel_seconds)
    launching = min(LAUNCH_SECONDS * len(kernel_seconds), LAUNCH_SECONDS + own)
    outside = seconds - own - launching
    if outside <= MAX_OUTSIDE * seconds:
        return ""
    return (
        f"The launches take {seconds * 1e6:.1f} us and the candidate's own kernels {own * 1e6:.1f} us of it: "
        f"{outside / seconds:.0%} of the time is spent outside of them, more than {MAX_OUTSIDE:.0%}."
    )


def library_reason(ptx: str) -> str:
    """Why a kernel is refused whose PTX calls functions that it doesn't define; empty when it calls none.

    Printing and failed assertions are the driver's and allowed. Launching kernels from a kernel is the device
    runtime's, memory from the device's heap is in nobody's plan.
    """
    called = [
        name for name in _EXTERN_FUNCTION.findall(without_comments(ptx)) if name not in _ALLOWED_FUNCTIONS
    ]
    if not called:
        return ""
    names = ", ".join(f"'{name}'" for name in called)
    if any(name.startswith(("cudaLaunchDevice", "cudaGetParameterBuffer", "cudaCDP")) for name in called):
        return f"The kernel launches kernels from the device ({names}), which the launch plan doesn't show."
    return f"The kernel calls {names}, which it doesn't define: the kernel itself is asked for, without libraries."


_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)")
_ALLOWED_FUNCTIONS = frozenset({"vprintf", "__assertfail"})


def chance_remark(first: bytes, second: bytes, label: str) -> str:
    """A sentence when two runs on the same inputs left different bytes, or digests of them; empty otherwise.

    A task that is `deterministic` refuses such a kernel; any other may keep it, with the remark.
    """
    if first == second:
        return ""
    return f"Two runs on the same inputs differ, at {label}: the result depends on chance."


def worn_check(check: Check, runs: int) -> Check:
    """The check of a run after `runs` others of the same kernel, none of whose variables were put back in between.

    The first run was right: a kernel that isn't right now goes by what it kept, and would fail whoever runs it twice.
    """
    if check.passed:
        return check
    message = f"{check.message} Its first run was right; this one followed {runs} others and goes by what they kept."
    return replace(check, message=message, guard=Guard.REPETITION)


def slower_shapes(evaluation: Evaluation, parent: Evaluation | None) -> list[str]:
    """Each shape at which the kernel is slower than its parent by more than the noise."""
    before = {timing.shape: timing for timing in parent.timings} if parent is not None else {}
    return [
        f"Slower than its parent at {timing.shape}: {timing.seconds / before[timing.shape].seconds:.2f} "
        f"times its time."
        for timing in (timings_beside(evaluation, parent) if parent is not None else ())
        if timing.shape in before and is_slower(timing, before[timing.shape])
    ]


def is_slower(timing: Timing, reference: Timing) -> bool:
    """Whether one timing is worse than another by more than the noise, intervals included."""
    return timing.seconds > reference.seconds * (1 + NOISE) and timing.low > reference.high


def spills(evaluation: Evaluation, _: Evaluation | None = None) -> list[str]:
    """Each kernel that keeps registers in local memory."""
    return [
        f"'{found.kernel}' spills {found.spill_store_bytes} bytes of stores and {found.spill_load_bytes} "
        f"bytes of loads to local memory."
        for found in evaluation.resources
        if found.spill_store_bytes or found.spill_load_bytes
    ]


def register_limit(evaluation: Evaluation, _: Evaluation | None = None) -> list[str]:
    """Each kernel that uses every register a thread can have."""
    return [
        f"'{found.kernel}' uses {found.registers} registers a thread, the most there are."
        for found in evaluation.resources
        if found.registers >= MAX_REGISTERS
    ]


def register_cliff(evaluation: Evaluation, parent: Evaluation | None) -> list[str]:
    """Each kernel whose registers passed a power of two, above which half as many warps fit; the highest one."""
    before = {found.kernel: found.registers for found in parent.resources} if parent is not None else {}
    remarks = []
    for found in evaluation.resources:
        were = before.get(found.kernel, found.registers)
        passed = [cliff for cliff in (32, 64, 128) if were <= cliff < found.registers]
        if passed:
            remarks.append(
                f"'{found.kernel}' went from {were} to {found.registers} registers a thread, past the cliff at "
                f"{passed[-1]}: half as many warps fit on a multiprocessor as just below it."
            )
    return remarks


def local_arrays(evaluation: Evaluation, _: Evaluation | None = None) -> list[str]:
    """Each kernel with a stack frame that isn't spills: an array that is indexed at run time."""
    return [
        f"'{found.kernel}' keeps {found.stack_bytes} bytes a thread in local memory, as an array indexed at "
        f"run time does."
        for found in evaluation.resources
        if found.stack_bytes and not found.spill_store_bytes
    ]


GUARDRAILS = (
    Guardrail("slower than the parent", slower_shapes),
    Guardrail("register spills", spills),
    Guardrail("register limit", register_limit),
    Guardrail("register cliff", register_cliff),
    Guardrail("local arrays", local_arrays),
)
