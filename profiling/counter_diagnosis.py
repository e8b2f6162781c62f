"""What holds a measured kernel back, from its hardware counters: the causes that `bottleneck` finds for modelled ones.

Every unit has a utilisation, the fraction of the time that it is busy; what the busiest leaves over is latency. The
shares of the time are in proportion to the cubes of these, because overlapping work hides behind the longest: the
rule that the model adds its terms up by. Time in which multiprocessors have no work at all is taken off first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.bottleneck import combined_diagnosis, strongest_first
from mctskernel.profiling.counters import combined_counters
from mctskernel.profiling.quantities import byte_text, count_text
from mctskernel.profiling.utilisation import (
    SECTOR_BYTES,
    Counters,
    Unit,
    Utilisation,
    busy_sentences,
    utilisation,
)

EXCESS = 1.25
"""Sectors per request, over those that coalesced accesses need, above which accesses count as uncoalesced."""

OVERLAP = 3
"""The exponent by which overlapping parts of the time are weighed, as in `model`."""

WIDEST_ACCESS = 16
"""Bytes that one thread can load or store at once."""


def diagnose_launches(
    launches: Sequence[Counters],
    gpu: Architecture | None = None,
    access_bytes: int = WIDEST_ACCESS,
    kernels: Sequence[str] = (),
) -> Diagnosis:
    """The causes of a plan's time, from the counters of each of its launches, weighted by their time.

    `kernels` names what the launches run, in order.
    """
    found = combined_diagnosis(
        [(diagnose_counters(launch, gpu, access_bytes), launch.get(names.TIME, 1.0)) for launch in launches],
        kernels,
    )
    return replace(found, explanation=" ".join(busy_sentences(combined_counters(launches), gpu)))


def diagnose_counters(
    counters: Counters, gpu: Architecture | None = None, access_bytes: int = WIDEST_ACCESS
) -> Diagnosis:
    """The causes of one launch's time, the strongest first.

    `access_bytes` is the widest access to global memory that a thread makes (`widest_access`). With a description
    of the GPU, utilisations that were not measured are worked out from totals, where these are there.
    """
    busy = utilisation(counters, gpu)
    weights = {unit: value**OVERLAP for unit, value in busy.of.items()}
    whole = sum(weights.values()) or 1.0
    shares = {unit: busy.active * weight / whole for unit, weight in weights.items()}
    return strongest_first(
        [
            *_memory_causes(counters, shares, busy, access_bytes),
            *_shared_causes(counters, shares, busy),
            *_compute_causes(counters, shares, busy),
            *_latency_causes(counters, shares, gpu, access_bytes),
            _idle_cause(counters, busy),
        ]
    )


def widest_access(ptx: str) -> int:
    """The most bytes of global memory that a thread loads or stores at once, by its PTX; 4 if it does neither."""
    widths = [
        int(match["vector"] or 1) * int(match["bits"]) // 8
        for match in _GLOBAL_ACCESS.finditer(ptx)
        if match["bits"]
    ]
    return min(max(widths, default=4), WIDEST_ACCESS)


_GLOBAL_ACCESS = re.compile(
    r"\b(?:ld|st)(?:\.\w+)*?\.global(?:\.\w+)*?(?:\.v(?P<vector>[248]))?\.[bfsu](?P<bits>\d+)\b"
)


def _memory_causes(
    counters: Counters, shares: Mapping[Unit, float], busy: Utilisation, access_bytes: int
) -> Iterator[Cause]:
    seconds = counters.get(names.TIME, 0.0)
    dram = counters.get(
        names.DRAM_BYTES, counters.get(names.DRAM_READ, 0.0) + counters.get(names.DRAM_WRITE, 0.0)
    )
    moved = f"{byte_text(dram)} move at {dram / seconds / 1e12:.2f} TB/s, " if dram and seconds else ""
    yield Cause(
        Bottleneck.DRAM_BANDWIDTH,
        shares[Unit.DRAM],
        f"DRAM bandwidth: {moved}{busy.of[Unit.DRAM]:.0%} of what a copy reaches; only touching less data, or keeping "
        "it in L2, helps.",
    )
    shared = _fraction(counters.get(names.SHARED_WAVEFRONTS, 0.0), counters.get(names.WAVEFRONTS, 0.0))
    traffic = shares[Unit.L2] + shares[Unit.L1] * (1.0 - shared)
    accesses = _accesses(counters)
    wasted = _wasted(accesses, access_bytes)
    if wasted:
        kind, sectors, requests = max(accesses, key=lambda access: access[1] - access_bytes * access[2])
        # Where no unit is busy, what is not needed still stands in the queues that the rest waits in.
        yield Cause(
            Bottleneck.UNCOALESCED_ACCESS,
            (traffic + shares[Unit.LATENCY]) * wasted,
            f"Uncoalesced access: a warp {kind} touches {sectors / requests:.3g} sectors on average where "
            f"{access_bytes} hold all that its {WARP_LANES} lanes can ask for; {wasted:.0%} of the traffic between L1 "
            "and L2 is not needed.",
        )
    useful = 1.0 - wasted
    crossed = SECTOR_BYTES * counters.get(names.L2_SECTORS, counters.get(names.L1_FROM_L2, 0.0))
    hits = f", {counters[names.L2_HIT_RATE]:.0f}% of it found there" if names.L2_HIT_RATE in counters else ""
    yield Cause(
        Bottleneck.L2_BANDWIDTH,
        shares[Unit.L2] * useful,
        f"L2 bandwidth: L2 is busy {busy.of[Unit.L2]:.0%} of the time; {byte_text(crossed)} cross between L1 and "
        f"L2{hits}; tiles in shared memory or registers would reuse it.",
    )
    yield Cause(
        Bottleneck.L1_THROUGHPUT,
        shares[Unit.L1] * (1.0 - shared) * useful,
        f"L1 throughput: {count_text(sum(requests for *_, requests in accesses))} global accesses keep L1 busy "
        f"{busy.of[Unit.L1]:.0%} of the time; wider loads (float4) or reuse in registers and shared memory need fewer.",
    )


def _accesses(counters: Counters) -> list[tuple[str, float, float]]:
    """Kind, sectors and requests of what global memory was asked for."""
    kinds = (
        ("load", names.LOAD_SECTORS, names.LOAD_REQUESTS),
        ("store", names.STORE_SECTORS, names.STORE_REQUESTS),
    )
    apart = [
        (kind, counters[sectors], counters[requests])
        for kind, sectors, requests in kinds
        if counters.get(sectors) and counters.get(requests)
    ]
    together = counters.get(names.LOAD_REQUESTS, 0.0) + counters.get(names.STORE_REQUESTS, 0.0)
    if names.L1_SECTORS not in counters or not together:
        return apart
    return apart or [("access", counters[names.L1_SECTORS], together)]


def _wasted(accesses: Sequence[tuple[str, float, float]], access_bytes: int) -> float:
    """The fraction of the sectors that coalesced accesses wouldn't touch; 0 where it is small."""
    # A warp whose lanes access consecutive memory, `access_bytes` each, touches as many sectors of 32 bytes.
    excess = sum(
        sectors - requests * access_bytes
        for _, sectors, requests in accesses
        if sectors > EXCESS * requests * access_bytes
    )
    wasted = _fraction(excess, sum(sectors for _, sectors, _ in accesses))
    return wasted if wasted > 0.1 else 0.0


def _shared_causes(counters: Counters, shares: Mapping[Unit, float], busy: Utilisation) -> Iterator[Cause]:
    wavefronts = counters.get(names.SHARED_WAVEFRONTS, 0.0)
    share = shares[Unit.L1] * _fraction(wavefronts, counters.get(names.WAVEFRONTS, wavefronts))
    conflicts = counters.get(names.BANK_CONFLICTS, 0.0)
    conflicting = min(1.0, _fraction(conflicts, wavefronts))
    if conflicting > 0.05:
        yield Cause(
            Bottleneck.BANK_CONFLICTS,
            share * conflicting,
            f"Shared-memory bank conflicts: {count_text(conflicts)} of {count_text(wavefronts)} cycles of shared "
            f"memory ({conflicting:.0%}) are conflicts (pad the rows, or change which thread reads what).",
        )
    yield Cause(
        Bottleneck.SHARED_THROUGHPUT,
        share * (1.0 - conflicting),
        f"Shared-memory throughput: {count_text(wavefronts)} cycles of shared memory, of the {busy.of[Unit.L1]:.0%} of "
        "the time that L1 and shared memory are busy; register blocking or wider accesses need fewer.",
    )


def _compute_causes(counters: Counters, shares: Mapping[Unit, float], busy: Utilisation) -> Iterator[Cause]:
    lanes = counters.get(names.ACTIVE_LANES, float(WARP_LANES))
    idle = 1.0 - lanes / WARP_LANES
    diverges = idle > 0.25
    if diverges:
        yield Cause(
            Bottleneck.DIVERGENCE,
            shares[Unit.ISSUE] * idle,
            f"Divergence: on average {lanes:.0f} of a warp's {WARP_LANES} lanes are at work; branches that differ "
            "between neighbouring threads waste the rest.",
        )
    yield Cause(
        Bottleneck.INSTRUCTION_ISSUE,
        shares[Unit.ISSUE] * (1.0 - idle if diverges else 1.0),
        f"Instruction issue: {count_text(counters.get(names.INSTRUCTIONS, 0.0))} warp instructions keep the schedulers "
        f"busy for {busy.of[Unit.ISSUE]:.0%} of the time; fewer instructions per result (wider accesses, unrolling, "
        "less index arithmetic) help.",
    )
    for unit, bottleneck, title, what in (
        (Unit.FMA, Bottleneck.FP32_PIPE, "FP32 pipe", "multiply-adds (and 32-bit integer multiplications)"),
        (Unit.ALU, Bottleneck.INTEGER_PIPE, "Integer pipe", "integer, logic and compare instructions"),
        (
            Unit.SPECIAL,
            Bottleneck.SPECIAL_FUNCTIONS,
            "Special functions",
            "exp, sqrt, divisions, conversions",
        ),
        (Unit.TENSOR, Bottleneck.TENSOR_PIPE, "Tensor pipe", "tensor-core instructions"),
    ):
        yield Cause(bottleneck, shares[unit], f"{title}: busy {busy.of[unit]:.0%} of the time with {what}.")


def _latency_causes(
    counters: Counters, shares: Mapping[Unit, float], gpu: Architecture | None, access_bytes: int
) -> Iterator[Cause]:
    share = shares[Unit.LATENCY] * (1.0 - _wasted(_accesses(counters), access_bytes))
    occupied = counters.get(names.WARPS_ACTIVE, 0.0)
    atomics = _atomic_fraction(counters, gpu)
    if atomics > 0.1:
        operations = counters.get(names.L2_ATOMICS, 0.0) + counters.get(names.L2_REDUCTIONS, 0.0)
        yield Cause(
            Bottleneck.ATOMICS,
            share * atomics,
            f"Atomics: {count_text(operations)} sectors of atomic operations reach L2, where those on one address take "
            "turns; combine values in the warp and block first.",
        )
    # For every instruction that a scheduler issues, so many of its warps wait for each reason.
    waiting = {
        stall: counters.get(stall, 0.0)
        for stall in (
            names.STALL_LONG_SCOREBOARD,
            names.STALL_BARRIER,
            names.STALL_SHORT_SCOREBOARD,
            names.STALL_LG_THROTTLE,
        )
    }
    warps = max(sum(waiting.values()), _warps_per_issue(counters, gpu))
    rest = share * (1.0 - atomics)
    for stall, bottleneck, sentence in (
        (
            names.STALL_LONG_SCOREBOARD,
            Bottleneck.GLOBAL_LATENCY,
            "Global-memory latency: for every instruction issued, {warps:.1f} warps wait for a load, with "
            "{occupied:.0f}% of the warps resident; more independent loads in flight per thread (unrolling, vector "
            "loads, prefetching) or more warps would hide it.",
        ),
        (
            names.STALL_BARRIER,
            Bottleneck.BARRIERS,
            "Barriers: for every instruction issued, {warps:.1f} warps wait at a barrier; fewer barriers, or warp "
            "shuffles instead, would help.",
        ),
        (
            names.STALL_SHORT_SCOREBOARD,
            Bottleneck.SHARED_THROUGHPUT,
            "Shared-memory latency: for every instruction issued, {warps:.1f} warps wait for shared memory or special "
            "functions; register blocking, shuffles or more independent work would help.",
        ),
        (
            names.STALL_LG_THROTTLE,
            Bottleneck.L1_THROUGHPUT,
            "Memory queue: for every instruction issued, {warps:.1f} warps wait until L1's queue can take one more "
            "access; wider or fewer accesses help.",
        ),
    ):
        yield Cause(
            bottleneck,
            rest * _fraction(waiting[stall], warps),
            sentence.format(warps=waiting[stall], occupied=occupied),
        )
    unexplained = rest * max(0.0, 1.0 - _fraction(sum(waiting.values()), warps))
    issue = counters.get(names.ISSUE_ACTIVE, 0.0)
    if occupied < 50.0:
        yield Cause(
            Bottleneck.LOW_OCCUPANCY,
            unexplained,
            f"Low occupancy: {occupied:.0f}% of the warps that fit are resident, and the schedulers issue in "
            f"{issue:.0f}% of their cycles: too few to hide the latency of dependent instructions.",
        )
    else:
        yield Cause(
            Bottleneck.INSTRUCTION_ISSUE,
            unexplained,
            f"Dependent instructions: the schedulers issue in {issue:.0f}% of their cycles although {occupied:.0f}% of "
            "the warps are resident; independent work per thread (unrolling, several accumulators) helps.",
        )


def _warps_per_issue(counters: Counters, gpu: Architecture | None) -> float:
    """Resident warps of a scheduler for every instruction that it issues; 0 where that isn't known."""
    if gpu is None:
        return 0.0
    warps = (
        counters.get(names.WARPS_ACTIVE, 0.0)
        / 100.0
        * gpu.limits.max_threads
        / WARP_LANES
        / gpu.chip.schedulers
    )
    return _fraction(warps, counters.get(names.ISSUE_ACTIVE, 0.0) / 100.0)


def _atomic_fraction(counters: Counters, gpu: Architecture | None) -> float:
    """The fraction of the time that atomics take if all are on one address."""
    operations = counters.get(names.L2_ATOMICS, 0.0) + counters.get(names.L2_REDUCTIONS, 0.0)
    if gpu is None or not operations:
        return 0.0
    return min(1.0, _fraction(operations * gpu.overheads.same_address_atomic, counters.get(names.TIME, 0.0)))


def _idle_cause(counters: Counters, busy: Utilisation) -> Cause:
    """Time without any work on the multiprocessors: launching, too few blocks, or the last ones still running."""
    idle, microseconds = 1.0 - busy.active, counters.get(names.TIME, 0.0) * 1e6
    if microseconds < 10.0:
        return Cause(
            Bottleneck.LAUNCH_OVERHEAD,
            idle,
            f"Launch overhead: of {microseconds:.1f} us, a multiprocessor is at work for {busy.active:.0%} on average; "
            "fewer launches, or more work in each, help.",
        )
    few = busy.active < 0.5
    return Cause(
        Bottleneck.TOO_FEW_BLOCKS if few else Bottleneck.TAIL,
        idle,
        f"{'Too few blocks' if few else 'Tail'}: on average the multiprocessors are at work for {busy.active:.0%} of "
        f"the time; {'more' if few else 'smaller'} blocks of even length would fill them.",
    )


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
