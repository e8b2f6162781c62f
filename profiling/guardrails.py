"""Guardrails on evaluations: impossible times, refused kernels, warnings, and the final validation's verdict.

Two GPUs of one kind aren't equally fast, and one GPU isn't from hour to hour. The starting kernel is timed interleaved
with every other one, so what slows both down cancels out of their ratio. Times are stored as they were measured;
times of two kernels are compared by `beside` alone.

`mctskernel.profiling.source_rules` has the rules that refuse a kernel before it is built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mctskernel.core.evaluation import Check, Evaluation, Guard, Source, Timing
from mctskernel.core.expression import evaluate
from mctskernel.core.launch_plan import MAX_REGISTERS
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.ptx_text import without_comments

NOISE = 0.02
"""The fraction by which two medians of the same kernel may differ: differences below it mean nothing."""


REGISTER_CLIFFS = (32, 64, 128)  # registers a thread with which 64, 32 and 16 warps fit on a multiprocessor

BELIEVABLE = 0.95
"""A time below this fraction of the floor is impossible. The rest covers the clock's resolution."""

MAX_OUTSIDE = 0.5  # the largest fraction of a plan's time that may pass outside the candidate's own kernels

LAUNCH_SECONDS = 5e-6
"""What one launch may take besides its kernel.

Many launches together may take no more than that and their kernels' time: empty launches can't hide work done
elsewhere."""


@dataclass(frozen=True)
class Peaks:
    """What a GPU can do at most for one kernel: bytes per second, operations per second, L2 bytes."""

    dram_bytes_per_second: float
    flops_per_second: float
    l2_bytes: int


_SLOW_CODE = re.compile(r"\(C7\d{3}\) Potential Performance Loss[^\n]*")
"""As `(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...`."""


def flags(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the compiler's warnings about speed, for people and language models. They refuse nothing."""
    warnings = [f"ptxas: {found}" for found in dict.fromkeys(_SLOW_CODE.findall(evaluation.log))]
    for found in evaluation.resources:
        if found.spill_store_bytes or found.spill_load_bytes:
            warnings.append(
                f"'{found.kernel}' spills {found.spill_store_bytes} bytes of stores and {found.spill_load_bytes} "
                f"bytes of loads to local memory."
            )
        if found.registers >= MAX_REGISTERS:
            warnings.append(
                f"'{found.kernel}' uses {found.registers} registers a thread, the most there are."
            )
        if found.stack_bytes and not found.spill_store_bytes:
            warnings.append(
                f"'{found.kernel}' keeps {found.stack_bytes} bytes a thread in local memory, as an array indexed at "
                f"run time does."
            )
    return tuple(warnings)


def flags_against(evaluation: Evaluation, parent: Evaluation) -> tuple[str, ...]:
    """Return warnings about what got worse since the parent: shapes that are slower, registers past a power of two."""
    before = {found.kernel: found.registers for found in parent.resources}
    warnings = slower_shapes(evaluation, parent)
    for found in evaluation.resources:
        were = before.get(found.kernel, found.registers)
        passed = [cliff for cliff in REGISTER_CLIFFS if were <= cliff < found.registers]
        if passed:
            warnings.append(
                f"'{found.kernel}' went from {were} to {found.registers} registers a thread, past the cliff at "
                f"{passed[-1]}: {_warps(found.registers)} warps fit on a multiprocessor, not {_warps(passed[-1])}."
            )
    return tuple(warnings)


def _warps(registers: int) -> int:
    """How many warps have registers on a multiprocessor, which gives them to four at a time."""
    return 65536 // (32 * -(-registers // 8) * 8) // 4 * 4


def floor_seconds(task: Task, shape: Shape, peaks: Peaks) -> float:
    """Return the least time that any kernel of the task can take at one shape, from the roofline.

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
    """Return why the timings, one for each search shape in order, are impossible; empty when they aren't."""
    for shape, timing in zip(task.search_shapes, timings, strict=True):
        floor = floor_seconds(task, shape, peaks)
        if not math.isfinite(timing.seconds) or timing.seconds <= 0:
            return f"At {shape_label(shape)} the time is {timing.seconds} s, which is not a time."
        if timing.seconds < BELIEVABLE * floor:
            return (
                f"At {shape_label(shape)} the kernel took {timing.seconds * 1e6:.1f} us, but moving the data "
                f"and doing the arithmetic takes at least {floor * 1e6:.1f} us: it can't have done the work."
            )
    return ""


def outside_reason(seconds: float, kernel_seconds: Sequence[float]) -> str:
    """Return why a plan is refused that spends its time outside its own kernels; empty when it isn't.

    `seconds` is the time of the whole plan, `kernel_seconds` that of each of its kernels alone (the counter
    `gpu__time_duration.sum`), both on a cold cache.
    """
    own = math.fsum(kernel_seconds)
    launching = min(LAUNCH_SECONDS * len(kernel_seconds), LAUNCH_SECONDS + own)
    outside = seconds - own - launching
    if outside <= MAX_OUTSIDE * seconds:
        return ""
    each = ", ".join(f"{found * 1e6:.1f}" for found in kernel_seconds)
    return (
        f"The launches take {seconds * 1e6:.1f} us and the candidate's own kernels {own * 1e6:.1f} us of it ({each}): "
        f"{outside / seconds:.0%} of the time is spent outside of them, more than {MAX_OUTSIDE:.0%}."
    )


def library_reason(ptx: str) -> str:
    """Return why a kernel is refused whose PTX calls functions that it doesn't define; empty when it calls none.

    Printing and failed assertions are the driver's and allowed. Launching kernels from a kernel is the device
    runtime's, and memory from the device's heap is in no launch plan.
    """
    called = [
        name for name in _EXTERN_FUNCTION.findall(without_comments(ptx)) if name not in _ALLOWED_FUNCTIONS
    ]
    if not called:
        return ""
    names = ", ".join(f"'{name}'" for name in called)
    if any(name.startswith(("cudaLaunchDevice", "cudaGetParameterBuffer", "cudaCDP")) for name in called):
        return f"The kernel launches kernels from the device ({names}), which the launch plan doesn't show."
    return f"The kernel calls {names}, which it doesn't define: kernels may not call libraries."


_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)")
_ALLOWED_FUNCTIONS = frozenset({"vprintf", "__assertfail"})


def chance_flag(first: bytes, second: bytes, label: str) -> str:
    """Return a sentence when runs on the same inputs gave different bytes, which a `deterministic` task refuses."""
    if first == second:
        return ""
    return f"Two runs on the same inputs differ, at {label}: the result depends on chance."


def worn_check(check: Check, runs: int) -> Check:
    """Return the check of a run after `runs` others: a kernel may depend on what they left in its variables."""
    if check.passed:
        return check
    message = f"{check.message} Its first run was right; this one followed {runs} others and depends on what they left."
    return replace(check, message=message, guard=Guard.REPETITION)


def slower_shapes(evaluation: Evaluation, parent: Evaluation | None) -> list[str]:
    """Return a sentence for each shape at which the kernel is slower than its parent by more than the noise."""
    if parent is None:
        return []
    before = {timing.shape: timing for timing in parent.timings}
    return [
        f"Slower than its parent at {timing.shape}: {timing.seconds / before[timing.shape].seconds:.2f} "
        f"times its time."
        for timing in timings_beside(evaluation, parent)
        if timing.shape in before and is_slower(timing, before[timing.shape])
    ]


def is_slower(timing: Timing, reference: Timing) -> bool:
    """Return whether one timing is worse than another by more than the noise, intervals included."""
    return timing.seconds > reference.seconds * (1 + NOISE) and timing.low > reference.high


def refusal(evaluation: Evaluation, root: Evaluation) -> str:
    """Return why a kernel is not the answer at the held-out shapes, given the baseline's search; empty if it is."""
    return disbelief(evaluation) or " ".join(regressions(evaluation, root))


def disbelief(evaluation: Evaluation) -> str:
    """Return why a kernel is wrong or its time impossible; empty for one that is correct and perhaps slow."""
    if not evaluation.ok:
        return f"{evaluation.outcome}: {evaluation.message}"
    return evaluation.quarantine


def regressions(evaluation: Evaluation, root: Evaluation) -> Iterator[str]:
    """Return a sentence on each held-out shape that is slower by more than noise, a launch or the model's error."""
    for timing in evaluation.timings:
        baseline = timing.baseline_seconds
        if baseline is None or timing.low - baseline <= LAUNCH_SECONDS:
            continue
        loss = math.log(timing.low / baseline)
        if loss > _uncertainty(evaluation, root):
            yield (
                f"At {timing.shape}, a shape that no search sees, it takes {timing.seconds * 1e6:.1f} us and the "
                f"baseline {baseline * 1e6:.1f} us: {timing.seconds / baseline:.2f} times as long."
            )


def _uncertainty(evaluation: Evaluation, root: Evaluation) -> float:
    """The logarithm of a ratio of times that means nothing yet."""
    if evaluation.source is Source.MODELLED:
        return log_ratio_sigma(evaluation.terms, root.terms)
    return math.log1p(NOISE)


def beside(timing: Timing, reference: Timing) -> Timing:
    """Return a timing as it would be where and when another one at its shape was taken.

    It is scaled by the starting kernel's times beside the two, whose own uncertainty makes its interval wider; it is
    unchanged where that wasn't timed beside both.
    """
    if not timing.baseline_seconds or not reference.baseline_seconds:
        return timing
    factor = reference.baseline_seconds / timing.baseline_seconds
    spreads = timing.baseline_spread or 0.0, reference.baseline_spread or 0.0
    # Three medians, whose errors have nothing to do with each other.
    below = math.hypot(timing.seconds - timing.low, *(spread * timing.seconds for spread in spreads))
    above = math.hypot(timing.high - timing.seconds, *(spread * timing.seconds for spread in spreads))
    return replace(
        timing,
        seconds=timing.seconds * factor,
        low=max(timing.seconds - below, 0.0) * factor,
        high=(timing.seconds + above) * factor,
        samples=tuple(sample * factor for sample in timing.samples),
        baseline_seconds=reference.baseline_seconds,
    )


def timings_beside(evaluation: Evaluation, reference: Evaluation) -> tuple[Timing, ...]:
    """Return an evaluation's timings, each as it would be beside the reference's at its shape, where there is one."""
    theirs = {timing.shape: timing for timing in reference.timings}
    return tuple(
        beside(timing, theirs[timing.shape]) if timing.shape in theirs else timing
        for timing in evaluation.timings
    )
