"""What holds a kernel back, in sentences that carry their numbers: what people and language models read.

They are read off `Metrics`, of one launch, which `diagnosis` makes of the model's terms or of the counters of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis
from mctskernel.core.quantities import byte_text, count_text, time_text
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import WARP_LANES
from mctskernel.profiling.counters import Counters, dram_bytes
from mctskernel.profiling.model.price import Term

MOST_CAUSES = 6
SMALLEST_SHARE = 0.03


@dataclass(frozen=True)
class Excess:
    """The worst of the accesses: what a warp does, and how many sectors or cycles each takes and would have to."""

    what: str
    actual: float
    ideal: float


@dataclass(frozen=True)
class Metrics:
    """One launch, modelled or measured, as the causes are read off it.

    `shares` are the fractions of the time that each term explains, `busy` those in which its unit works. All others
    are fractions, too: `waits` of a warp's waiting, by what it waits for; `uncoalesced` and `spilled` of the traffic
    between L1 and L2, to which `uncoalesced_elsewhere` adds a share of the time that such accesses cost beyond it;
    `conflicting` of the cycles of shared memory. Of the model alone are known `touched_bytes` (what a cache without
    limits would move), the places of the worst accesses, and what limits the occupancy.
    """

    seconds: float
    counters: Counters
    shares: Mapping[Term, float]
    busy: Mapping[Term, float]
    waits: Mapping[str, float]
    crossed_bytes: float
    resident: float
    low_occupancy: bool
    atomics: float
    few_blocks: bool
    idle_text: str
    conflicting: float = 0.0
    uncoalesced: float = 0.0
    uncoalesced_elsewhere: float = 0.0
    worst_access: Excess | None = None
    worst_conflict: Excess | None = None
    spilled: float = 0.0
    spill_text: str = ""
    touched_bytes: float = 0.0
    limit_text: str = ""


def causes(m: Metrics) -> Iterator[Cause]:
    """What each part of the time is due to, and what would make it less."""
    yield from _memory_causes(m)
    yield from _latency_causes(m)
    yield from _compute_causes(m)
    yield from _grid_causes(m)


def _memory_causes(m: Metrics) -> Iterator[Cause]:
    traffic = m.shares[Term.GLOBAL_WAVEFRONTS] + m.shares[Term.L2]
    useful = 1.0 - m.uncoalesced - m.spilled
    if m.spilled:
        yield Cause(
            Bottleneck.SPILLS,
            traffic * m.spilled,
            f"Register spills: {m.spill_text} pass through L1, {m.spilled:.0%} of its global and local traffic.",
        )
    if m.worst_access is not None:
        worst = m.worst_access
        yield Cause(
            Bottleneck.UNCOALESCED_ACCESS,
            traffic * m.uncoalesced + m.uncoalesced_elsewhere,
            f"Uncoalesced access: each warp {worst.what} touches {worst.actual:.3g} sectors where {worst.ideal:.3g} "
            f"would do, so {worst.actual / worst.ideal:.2g} times the needed traffic crosses L1 and L2.",
        )
    requests = m.counters.get(names.LOAD_REQUESTS, 0.0) + m.counters.get(names.STORE_REQUESTS, 0.0)
    yield Cause(
        Bottleneck.L1_THROUGHPUT,
        m.shares[Term.GLOBAL_WAVEFRONTS] * useful,
        f"L1 throughput: {count_text(requests)} global accesses keep L1 busy "
        f"{m.busy[Term.GLOBAL_WAVEFRONTS]:.0%} of the time; wider loads (float4) or reuse in registers and shared "
        "memory make them fewer.",
    )
    times = m.crossed_bytes / max(m.touched_bytes, 1.0)
    again = f", {times:.1f} times the data that the kernel touches" if m.touched_bytes else ""
    yield Cause(
        Bottleneck.L2_BANDWIDTH,
        m.shares[Term.L2] * useful,
        f"L2 bandwidth: L2 is busy {m.busy[Term.L2]:.0%} of the time; {byte_text(m.crossed_bytes)} cross between L1 "
        f"and L2{again}; tiles in shared memory or registers would reuse it.",
    )
    dram = dram_bytes(m.counters)
    moved = f"{byte_text(dram)} move at {dram / m.seconds / 1e12:.2f} TB/s, " if dram and m.seconds else ""
    repeated = max(0.0, 1.0 - m.touched_bytes / dram) if dram and m.touched_bytes else 0.0
    if repeated > 0.1:
        advice = f"{repeated:.0%} of it is data fetched or written more than once."
    elif m.touched_bytes:
        advice = "every byte moves about once, so only touching less data helps."
    else:
        advice = "only touching less data, or keeping it in L2, helps."
    yield Cause(
        Bottleneck.DRAM_BANDWIDTH,
        m.shares[Term.DRAM],
        f"DRAM bandwidth: {moved}{m.busy[Term.DRAM]:.0%} of what a copy reaches; {advice}",
    )
    shared = m.shares[Term.SHARED_WAVEFRONTS]
    wavefronts = m.counters.get(names.SHARED_WAVEFRONTS, 0.0)
    if m.conflicting > 0.05:
        clash = m.worst_conflict
        where = (
            f": each warp {clash.what} takes {clash.actual:.3g} where {clash.ideal:.3g} would do"
            if clash
            else ""
        )
        yield Cause(
            Bottleneck.BANK_CONFLICTS,
            shared * m.conflicting,
            f"Shared-memory bank conflicts: {count_text(m.counters.get(names.BANK_CONFLICTS, 0.0))} of "
            f"{count_text(wavefronts)} cycles of shared memory ({m.conflicting:.0%}) are conflicts{where} (pad the "
            "rows, or change which thread reads what).",
        )
    yield Cause(
        Bottleneck.SHARED_THROUGHPUT,
        shared * (1.0 - m.conflicting),
        f"Shared-memory throughput: {count_text(wavefronts)} cycles of shared memory keep it busy "
        f"{m.busy[Term.SHARED_WAVEFRONTS]:.0%} of the time; register blocking or wider accesses need fewer.",
    )


WAITS = (
    (
        names.STALL_LONG_SCOREBOARD,
        Bottleneck.GLOBAL_LATENCY,
        "Global-memory latency: a warp waits for loads {share:.0%} of its time, and {resident:.0%} of the warps are "
        "resident, too few to hide it; more independent loads in flight per thread (unrolling, vector loads, "
        "prefetching) or more warps would.",
    ),
    (
        names.STALL_BARRIER,
        Bottleneck.BARRIERS,
        "Barriers: a warp waits at barriers {share:.0%} of its time; fewer barriers, or warp shuffles instead, help.",
    ),
    (
        names.STALL_SHORT_SCOREBOARD,
        Bottleneck.SHARED_THROUGHPUT,
        "Shared-memory latency: a warp waits for shared memory or special functions {share:.0%} of its time; "
        "register blocking, shuffles or more independent work would help.",
    ),
    (
        names.STALL_LG_THROTTLE,
        Bottleneck.L1_THROUGHPUT,
        "Memory queue: a warp waits {share:.0%} of its time until L1's queue can take one more access; wider or fewer "
        "accesses help.",
    ),
)
"""What a warp may wait for: the counter of such stalls, the bottleneck, and its sentence."""


def _latency_causes(m: Metrics) -> Iterator[Cause]:
    latency = m.shares[Term.LATENCY]
    for stall, bottleneck, sentence in WAITS:
        share = m.waits.get(stall, 0.0)
        yield Cause(bottleneck, latency * share, sentence.format(share=share, resident=m.resident))
    rest = latency * max(0.0, 1.0 - sum(m.waits.values()))
    issue = m.counters.get(names.ISSUE_ACTIVE, 0.0)
    if m.low_occupancy:
        yield Cause(
            Bottleneck.LOW_OCCUPANCY,
            rest,
            f"Low occupancy: {m.resident:.0%} of the warps that an SM can hold are resident{m.limit_text}, and the "
            f"schedulers issue in {issue:.0f}% of their cycles: too few to hide the latency of dependent instructions.",
        )
    else:
        yield Cause(
            Bottleneck.INSTRUCTION_ISSUE,
            rest,
            f"Dependent instructions: schedulers issue in {issue:.0f}% of their cycles although {m.resident:.0%} of "
            "the warps are resident; independent work per thread (unrolling, several accumulators) helps.",
        )
    yield Cause(
        Bottleneck.ATOMICS,
        m.shares[Term.ATOMICS],
        f"Atomics: {count_text(m.atomics)} atomic operations reach L2, where those on one address take turns; combine "
        "values in the warp and block first.",
    )


def _compute_causes(m: Metrics) -> Iterator[Cause]:
    issue = m.shares[Term.ISSUE]
    lanes = m.counters.get(names.ACTIVE_LANES, float(WARP_LANES))
    idle = 1.0 - lanes / WARP_LANES
    if idle > 0.25:
        yield Cause(
            Bottleneck.DIVERGENCE,
            issue * idle,
            f"Divergence: on average {lanes:.0f} of a warp's {WARP_LANES} lanes are at work; branches that differ "
            "between neighbouring threads waste the rest.",
        )
        issue *= 1.0 - idle
    yield Cause(
        Bottleneck.INSTRUCTION_ISSUE,
        issue,
        f"Instruction issue: {count_text(m.counters.get(names.INSTRUCTIONS, 0.0))} warp instructions keep the "
        f"schedulers busy for {m.busy[Term.ISSUE]:.0%} of the time; fewer instructions per result (wider accesses, "
        "unrolling, less index arithmetic) help.",
    )
    for term, bottleneck, title, what in (
        (Term.FMA, Bottleneck.FP32_PIPE, "FP32 pipe", "multiply-adds (and 32-bit integer multiplications)"),
        (Term.ALU, Bottleneck.INTEGER_PIPE, "Integer pipe", "integer, logic and compare instructions"),
        (
            Term.SPECIAL,
            Bottleneck.SPECIAL_FUNCTIONS,
            "Special functions",
            "exp, sqrt, divisions, conversions",
        ),
        (Term.TENSOR, Bottleneck.TENSOR_PIPE, "Tensor pipe", "tensor-core instructions"),
        (Term.FP64, Bottleneck.FP32_PIPE, "FP64 pipe", "double-precision instructions"),
    ):
        yield Cause(bottleneck, m.shares[term], f"{title}: busy {m.busy[term]:.0%} of the time with {what}.")


def _grid_causes(m: Metrics) -> Iterator[Cause]:
    """Time without any work on the SMs: launching, too few blocks, or the last ones still running."""
    yield Cause(
        Bottleneck.TOO_FEW_BLOCKS if m.few_blocks else Bottleneck.TAIL,
        m.shares[Term.TAIL],
        f"{'Too few blocks' if m.few_blocks else 'Tail'}: {m.idle_text}.",
    )
    yield Cause(
        Bottleneck.LAUNCH_OVERHEAD,
        m.shares[Term.LAUNCH] + m.shares[Term.BLOCK_LAUNCH],
        f"Launch overhead: starting the kernel and its blocks takes {time_text(m.busy[Term.LAUNCH] * m.seconds, 3)}; "
        "fewer launches, or more work in each and in each block, help.",
    )


def combined_diagnosis(
    launches: Sequence[tuple[Diagnosis, float]], kernels: Sequence[str] = (), gap: float = 0.0
) -> Diagnosis:
    """A plan's diagnosis from those of its launches and their seconds, with `gap` seconds from each to the next.

    `kernels` are those of the launches in order; where there are several, each sentence says of which it speaks. What
    launching takes is one cause for all of them.
    """
    gaps = gap * (len(launches) - 1)
    total = sum(seconds for _, seconds in launches) + gaps
    several = len(set(kernels)) > 1 and len(kernels) == len(launches)
    named = [f"In {kernel}: " for kernel in kernels] if several else [""] * len(launches)
    found, launching = [], gaps
    for (diagnosis, seconds), where in zip(launches, named, strict=True):
        for cause in diagnosis.causes:
            if len(launches) > 1 and cause.bottleneck is Bottleneck.LAUNCH_OVERHEAD:
                launching += cause.share * seconds
            else:
                found.append(Cause(cause.bottleneck, cause.share * seconds / total, where + cause.sentence))
    if launching:
        sentence = (
            f"Launch overhead: starting {len(launches)} launches takes {time_text(launching, 3)}; fewer help."
        )
        found.append(Cause(Bottleneck.LAUNCH_OVERHEAD, launching / total, sentence))
    return strongest_first(found)


def strongest_first(causes: Iterable[Cause]) -> Diagnosis:
    """The causes in order, without those too weak to matter; the strongest is always there."""
    causes = sorted(causes, key=lambda cause: -cause.share)
    strong = [cause for cause in causes if cause.share >= SMALLEST_SHARE]
    return Diagnosis(tuple((strong or causes[:1])[:MOST_CAUSES]))
