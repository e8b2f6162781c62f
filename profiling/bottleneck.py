"""What holds a kernel back, in sentences that carry their numbers: what people and language models read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, LaunchTerms
from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.model.explanation import explain, sentences, shares_of
from mctskernel.profiling.model.price import Price, Term, imbalance
from mctskernel.profiling.quantities import byte_text, count_text
from mctskernel.profiling.utilisation import busy_sentences

if TYPE_CHECKING:
    # Only what is priced needs a compiler; what binds a kernel is read where there is none.
    from mctskernel.profiling.model.work import AccessPattern, KernelWork

MOST_CAUSES = 6
SMALLEST_SHARE = 0.03


def diagnose(work: KernelWork, price: Price, gpu: Architecture) -> Diagnosis:
    """The causes of one launch's modelled time, the strongest first."""
    terms = {term.value: seconds for term, seconds in price.terms.items()}
    busiest = imbalance(work.blocks, gpu.chip.sms)
    shares = shares_of(LaunchTerms(work.kernel, price.seconds, terms, busiest))
    causes = [
        *_memory_causes(work, price, shares, gpu),
        *_shared_causes(work, shares),
        *_latency_causes(work, shares, gpu),
        *_compute_causes(work, price, shares),
        *_grid_causes(work, price, shares, gpu),
    ]
    return strongest_first(causes)


def combined_diagnosis(launches: Sequence[tuple[Diagnosis, float]], kernels: Sequence[str] = ()) -> Diagnosis:
    """A plan's diagnosis from those of its launches and their seconds.

    `kernels` are those of the launches in order; where there are several, each sentence says of which it speaks.
    """
    total = sum(seconds for _, seconds in launches)
    several = len(set(kernels)) > 1 and len(kernels) == len(launches)
    named = [f"In {kernel}: " for kernel in kernels] if several else [""] * len(launches)
    return strongest_first(
        [
            Cause(cause.bottleneck, cause.share * seconds / total, where + cause.sentence)
            for (diagnosis, seconds), where in zip(launches, named, strict=True)
            for cause in diagnosis.causes
        ]
    )


def strongest_first(causes: Iterable[Cause]) -> Diagnosis:
    """The causes in order, without those too weak to matter; the strongest is always there."""
    causes = sorted(causes, key=lambda cause: -cause.share)
    strong = [cause for cause in causes if cause.share >= SMALLEST_SHARE]
    return Diagnosis(tuple((strong or causes[:1])[:MOST_CAUSES]))


def account(evaluation: Evaluation) -> tuple[str, ...]:
    """What binds an evaluated kernel and what is next, in sentences: by the model's terms, or else by counters.

    Nothing where neither is known.
    """
    found = explain(evaluation)
    return sentences(found) if found else busy_sentences(evaluation.counters)


def _memory_causes(
    work: KernelWork, price: Price, shares: Mapping[str, float], gpu: Architecture
) -> Iterator[Cause]:
    traffic = shares.get(Term.GLOBAL_WAVEFRONTS, 0.0) + shares.get(Term.L2, 0.0)
    spilled = _fraction(work.spill_wavefronts, work.spill_wavefronts + work.global_wavefronts)
    if work.spill_wavefronts:
        yield Cause(
            Bottleneck.SPILLS,
            traffic * spilled,
            f"Register spills: {work.spill_bytes} bytes per thread don't fit into {work.registers} registers and "
            f"pass through L1, {spilled:.0%} of its global and local traffic.",
        )
    global_accesses = [access for access in work.accesses if access.space == "global"]
    excess = sum(max(0.0, access.sectors - access.ideal_sectors) for access in global_accesses)
    wasted = _fraction(excess, sum(access.sectors for access in global_accesses)) * (1.0 - spilled)
    worst = max(global_accesses, key=lambda access: access.sectors - access.ideal_sectors, default=None)
    dram = work.dram_read_bytes + work.dram_write_bytes
    dram_wasted = 1.0 - min(1.0, _fraction(work.unique_bytes, dram)) if dram else 0.0
    asked = sum(access.lanes * access.bytes_per_lane for access in global_accesses)
    unused = 0.0
    if worst is not None and wasted > 0.1:
        # Sectors of which a part was used come from DRAM in vain, or come again when another part is.
        unused = max(0.0, 1.0 - _fraction(asked, work.unique_bytes), min(dram_wasted, wasted))
        share = traffic * wasted + shares.get(Term.DRAM, 0.0) * unused
        yield Cause(Bottleneck.UNCOALESCED_ACCESS, share, _uncoalesced(worst))
    useful = 1.0 - wasted - spilled
    l2_bytes = (work.l2_read_sectors + work.l2_write_sectors) * gpu.memory.sector_bytes
    yield Cause(
        Bottleneck.L1_THROUGHPUT,
        shares.get(Term.GLOBAL_WAVEFRONTS, 0.0) * useful,
        f"L1 throughput: {count_text(work.load_requests + work.store_requests)} global accesses take "
        f"{count_text(work.global_wavefronts)} cycles of L1; wider loads (float4) or reuse in registers and shared "
        "memory make them fewer.",
    )
    yield Cause(
        Bottleneck.L2_BANDWIDTH,
        shares.get(Term.L2, 0.0) * useful,
        f"L2 bandwidth: {byte_text(l2_bytes)} cross between L1 and L2, "
        f"{l2_bytes / max(work.unique_bytes, 1.0):.1f} times the data that the kernel touches; tiles in shared "
        "memory or registers would reuse it.",
    )
    rate = dram / price.seconds
    yield Cause(
        Bottleneck.DRAM_BANDWIDTH,
        shares.get(Term.DRAM, 0.0) * (1.0 - unused),
        f"DRAM bandwidth: {byte_text(dram)} move at {rate / 1e12:.2f} TB/s, "
        f"{rate / gpu.memory.dram_bytes_per_second:.0%} of what a copy reaches"
        + (
            f"; {dram_wasted:.0%} of it is data fetched or written more than once."
            if dram_wasted > 0.1
            else "; every byte moves about once, so only touching less data helps."
        ),
    )


def _uncoalesced(access: AccessPattern) -> str:
    actual = access.sectors / access.requests
    ideal = max(access.ideal_sectors / access.requests, 1e-9)
    return (
        f"Uncoalesced access: each warp {access.kind}{_of(access)}{_at(access)} touches {actual:.3g} "
        f"sectors where {ideal:.3g} would do, so {actual / ideal:.2g} times the needed traffic crosses L1 and L2."
    )


def _of(access: AccessPattern) -> str:
    return f" of {access.name}" if access.name else ""


def _at(access: AccessPattern) -> str:
    return f" (line {access.line})" if access.line else ""


def _shared_causes(work: KernelWork, shares: Mapping[str, float]) -> Iterator[Cause]:
    share = shares.get(Term.SHARED_WAVEFRONTS, 0.0)
    conflicts = _fraction(work.conflict_wavefronts, work.shared_wavefronts)
    shared = [access for access in work.accesses if access.space == "shared"]
    worst = max(shared, key=lambda access: access.wavefronts - access.ideal_wavefronts, default=None)
    if worst is not None and conflicts > 0.05:
        actual, ideal = worst.wavefronts / worst.requests, worst.ideal_wavefronts / worst.requests
        yield Cause(
            Bottleneck.BANK_CONFLICTS,
            share * conflicts,
            f"Shared-memory bank conflicts: each warp {worst.kind}{_at(worst)} takes {actual:.3g} cycles where "
            f"{ideal:.3g} would do; {conflicts:.0%} of all shared-memory cycles are conflicts (pad the rows, or "
            "change which thread reads what).",
        )
    yield Cause(
        Bottleneck.SHARED_THROUGHPUT,
        share * (1.0 - conflicts),
        f"Shared-memory throughput: {count_text(work.shared_wavefronts)} cycles of shared memory for "
        f"{count_text(work.total_instructions)} instructions; register blocking or wider accesses need fewer.",
    )


def _latency_causes(work: KernelWork, shares: Mapping[str, float], gpu: Architecture) -> Iterator[Cause]:
    share = shares.get(Term.LATENCY, 0.0)
    chain = work.chain
    waiting = _fraction(chain.global_memory, chain.cycles)
    barriers = _fraction(chain.barriers, chain.cycles)
    resident = min(work.occupancy.warps, -(-work.blocks // gpu.chip.sms) * work.warps)
    most = gpu.limits.max_threads // WARP_LANES
    yield Cause(
        Bottleneck.GLOBAL_LATENCY,
        share * waiting,
        f"Global-memory latency: a warp waits {chain.global_memory:,.0f} of its {chain.cycles:,.0f} cycles for "
        f"loads, and {resident} warps per SM (of {most}) can't hide it; more independent loads in flight per "
        "thread (unrolling, vector loads, prefetching) or more warps would.",
    )
    yield Cause(
        Bottleneck.BARRIERS,
        share * barriers,
        f"Barriers: each warp meets {work.barriers:,.0f} barriers and waits about {chain.barriers:,.0f} of its "
        f"{chain.cycles:,.0f} cycles there; fewer barriers, or warp shuffles instead, would help.",
    )
    rest = share * max(0.0, 1.0 - waiting - barriers)
    occupancy = work.occupancy
    if occupancy.fraction < 0.5:
        yield Cause(
            Bottleneck.LOW_OCCUPANCY,
            rest,
            f"Low occupancy: {occupancy.warps} of {most} warps fit on an SM, limited by "
            f"{occupancy.limited_by} ({work.registers} registers a thread, {work.shared_bytes} bytes of shared "
            f"memory a block of {work.threads} threads), too few to hide the latency of dependent instructions.",
        )
    else:
        yield Cause(
            Bottleneck.INSTRUCTION_ISSUE,
            rest,
            f"Dependent instructions: one warp takes {chain.cycles:,.0f} cycles mostly waiting for its own "
            "arithmetic and shared memory; independent work per thread (unrolling, several accumulators) "
            "shortens it.",
        )


def _compute_causes(work: KernelWork, price: Price, shares: Mapping[str, float]) -> Iterator[Cause]:
    issue = shares.get(Term.ISSUE, 0.0)
    idle = 1.0 - work.active_lanes
    if idle > 0.25:
        yield Cause(
            Bottleneck.DIVERGENCE,
            issue * idle,
            f"Divergence: on average {work.active_lanes * WARP_LANES:.0f} of a warp's {WARP_LANES} lanes are at "
            "work; branches that differ between neighbouring threads waste the rest.",
        )
    total = max(work.total_instructions, 1.0)
    yield Cause(
        Bottleneck.INSTRUCTION_ISSUE,
        issue * (1.0 - idle if idle > 0.25 else 1.0),
        f"Instruction issue: {count_text(total)} warp instructions keep the schedulers busy for "
        f"{price.terms.get(Term.ISSUE, 0.0) / price.seconds:.0%} of the time; fewer instructions per result "
        "(wider accesses, unrolling, less index arithmetic) help.",
    )
    pipes = (
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
    )
    for term, bottleneck, title, what in pipes:
        busy = price.terms.get(term, 0.0) / price.seconds
        yield Cause(
            bottleneck,
            shares.get(term, 0.0),
            f"{title}: busy {busy:.0%} of the time with {what}.",
        )


def _grid_causes(
    work: KernelWork, price: Price, shares: Mapping[str, float], gpu: Architecture
) -> Iterator[Cause]:
    sms = gpu.chip.sms
    tail = shares.get(Term.TAIL, 0.0)
    if work.blocks < sms:
        yield Cause(
            Bottleneck.TOO_FEW_BLOCKS,
            tail,
            f"Too few blocks: {work.blocks} blocks leave {sms - work.blocks} of {sms} SMs idle.",
        )
    else:
        uneven = f"{work.blocks} blocks don't divide by {sms} SMs, so" if work.blocks % sms else "at the end"
        yield Cause(Bottleneck.TAIL, tail, f"Tail: {uneven} the last blocks run while other SMs are idle.")
    yield Cause(
        Bottleneck.ATOMICS,
        shares.get(Term.ATOMICS, 0.0),
        f"Atomics: {count_text(work.atomic_lanes)} atomic operations take turns on few addresses, "
        f"{count_text(work.atomic_turns)} of them one after the other; combine values in the warp and block first.",
    )
    overhead = shares.get(Term.LAUNCH, 0.0) + shares.get(Term.BLOCK_LAUNCH, 0.0)
    yield Cause(
        Bottleneck.LAUNCH_OVERHEAD,
        overhead,
        f"Launch overhead: starting the kernel and its {work.blocks:,} blocks takes "
        f"{(gpu.overheads.launch + price.terms.get(Term.BLOCK_LAUNCH, 0.0)) * 1e6:.1f} us; fewer launches, or "
        "fewer and larger blocks, help.",
    )


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
