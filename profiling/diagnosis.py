"""What holds a kernel back, by the terms of the model or by the hardware counters of a measured run.

Both come to the same `Metrics`, which the `causes` are read off.

Of a measured run every unit has a utilisation, the fraction of the time that it is busy; what the busiest leaves over
is latency. The shares of the time are in proportion to the cubes of these, because overlapping work hides behind the
longest: the rule that the model adds its terms up by. Time without any work on the SMs is taken off first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mctskernel.core.evaluation import Diagnosis, Evaluation, LaunchTerms
from mctskernel.core.quantities import time_text
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.causes import (
    WAITS,
    Excess,
    Metrics,
    causes,
    combined_diagnosis,
    strongest_first,
)
from mctskernel.profiling.counters import Counters, combined_counters, dram_bytes
from mctskernel.profiling.model.explanation import explain, sentences, shares_of
from mctskernel.profiling.model.price import Price, Term, imbalance

if TYPE_CHECKING:
    # Only what is priced needs a compiler; what binds a kernel is read where there is none.
    from mctskernel.profiling.model.work import AccessPattern, KernelWork

SECTOR_BYTES = 32
REACHABLE_DRAM = 0.92  # what a copy keeps DRAM busy at most, as a fraction of its peak: measured on an H100

SENDING = 0.93
"""How busy L2 is with sending when reads keep it as busy as they can: read, the two go together on an H100."""

EXCESS = 1.25
"""Sectors per request, over those that coalesced accesses need, above which accesses count as uncoalesced."""

OVERLAP = 3  # the exponent by which overlapping parts of the time are weighed, as in `model.price`
WIDEST_ACCESS = 16  # bytes that one thread can load or store at once


def diagnose(work: KernelWork, price: Price, gpu: Architecture, counters: Counters) -> Diagnosis:
    """The causes of one launch's modelled time, the strongest first."""
    return strongest_first(causes(_modelled(work, price, gpu, counters)))


def diagnose_counters(
    counters: Counters, gpu: Architecture | None = None, access_bytes: int = WIDEST_ACCESS
) -> Diagnosis:
    """The causes of a launch's measured time, strongest first; `access_bytes` is a thread's `widest_access`."""
    return strongest_first(causes(_measured(counters, gpu, access_bytes)))


def diagnose_launches(
    launches: Sequence[Counters],
    gpu: Architecture | None = None,
    access_bytes: int = WIDEST_ACCESS,
    kernels: Sequence[str] = (),
) -> Diagnosis:
    """The causes of a plan's time, from each launch's counters weighted by time; `kernels` names them in order."""
    found = combined_diagnosis(
        [(diagnose_counters(launch, gpu, access_bytes), launch.get(names.TIME, 1.0)) for launch in launches],
        kernels,
        gpu.overheads.launch_gap if gpu else 0.0,
    )
    return replace(found, explanation=" ".join(busy_sentences(combined_counters(launches), gpu)))


def account(evaluation: Evaluation) -> tuple[str, ...]:
    """What binds a kernel and what is next, in sentences, by the model's terms or counters; empty without either."""
    found = explain(evaluation)
    return sentences(found) if found else busy_sentences(evaluation.counters)


def _modelled(work: KernelWork, price: Price, gpu: Architecture, counters: Counters) -> Metrics:
    terms = {term.value: seconds for term, seconds in price.terms.items()}
    sms = gpu.chip.sms
    shares = dict.fromkeys(Term, 0.0)
    for name, share in shares_of(
        LaunchTerms(work.kernel, price.seconds, terms, imbalance(work.blocks, sms))
    ).items():
        shares[Term(name)] = share
    busy = {term: price.terms.get(term, 0.0) / price.seconds for term in Term}
    busy[Term.LAUNCH] += busy[Term.BLOCK_LAUNCH]
    dram = work.dram_read_bytes + work.dram_write_bytes
    busy[Term.DRAM] = dram / price.seconds / gpu.memory.dram_bytes_per_second
    spilled = _fraction(work.spill_wavefronts, work.spill_wavefronts + work.global_wavefronts)
    accesses = [access for access in work.accesses if access.space == "global"]
    excess = sum(max(0.0, access.sectors - access.ideal_sectors) for access in accesses)
    wasted = _fraction(excess, sum(access.sectors for access in accesses)) * (1.0 - spilled)
    unused, worst_access = 0.0, None
    if wasted > 0.1:
        # Sectors of which a part was used come from DRAM in vain, or come again when another part is.
        asked = sum(access.lanes * access.bytes_per_lane for access in accesses)
        repeated = 1.0 - min(1.0, _fraction(work.unique_bytes, dram)) if dram else 0.0
        unused = max(0.0, 1.0 - _fraction(asked, work.unique_bytes), min(repeated, wasted))
        worst = max(accesses, key=lambda access: access.sectors - access.ideal_sectors)
        worst_access = _excess(worst, worst.sectors, worst.ideal_sectors)
    elsewhere = shares[Term.DRAM] * unused
    shares[Term.DRAM] -= elsewhere
    shared = [access for access in work.accesses if access.space == "shared"]
    clash = max(shared, key=lambda access: access.wavefronts - access.ideal_wavefronts, default=None)
    resident = min(work.occupancy.warps, -(-work.blocks // sms) * work.warps)
    few_blocks = work.blocks < sms
    uneven = f"{work.blocks} blocks don't divide by {sms} SMs, so" if work.blocks % sms else "at the end"
    idle_text = f"{uneven} the last blocks run while other SMs are idle"
    if few_blocks:
        idle_text = f"{work.blocks} blocks leave {sms - work.blocks} of {sms} SMs idle"
    return Metrics(
        seconds=price.seconds,
        counters=counters,
        shares=shares,
        busy=busy,
        waits={
            names.STALL_LONG_SCOREBOARD: _fraction(work.chain.global_memory, work.chain.cycles),
            names.STALL_BARRIER: _fraction(work.chain.barriers, work.chain.cycles),
        },
        crossed_bytes=(work.l2_read_sectors + work.l2_write_sectors) * gpu.memory.sector_bytes,
        resident=resident / (gpu.limits.max_threads // WARP_LANES),
        low_occupancy=work.occupancy.fraction < 0.5,
        atomics=work.atomic_lanes,
        conflicting=_fraction(work.conflict_wavefronts, work.shared_wavefronts) if clash else 0.0,
        uncoalesced=wasted,
        uncoalesced_elsewhere=elsewhere,
        worst_access=worst_access,
        worst_conflict=_excess(clash, clash.wavefronts, clash.ideal_wavefronts) if clash else None,
        spilled=spilled,
        spill_text=f"{work.spill_bytes} bytes per thread don't fit into {work.registers} registers and",
        touched_bytes=work.unique_bytes,
        limit_text=f", limited by {work.occupancy.limited_by} ({work.registers} registers a thread, "
        f"{work.shared_bytes} bytes of shared memory a block of {work.threads} threads)",
        few_blocks=few_blocks,
        idle_text=idle_text,
    )


def _excess(access: AccessPattern, actual: float, ideal: float) -> Excess:
    of = f" of {access.name}" if access.name else ""
    at = f" (line {access.line})" if access.line else ""
    return Excess(f"{access.kind}{of}{at}", actual / access.requests, max(ideal / access.requests, 1e-9))


def _measured(counters: Counters, gpu: Architecture | None, access_bytes: int) -> Metrics:
    active, units = _utilisation(counters, gpu)
    weights = {term: value**OVERLAP for term, value in units.items()}
    whole = sum(weights.values()) or 1.0
    shares = _split_l1({term: active * weight / whole for term, weight in weights.items()}, counters)
    busy = _split_l1(units, counters) | {Term.LAUNCH: 1.0 - active}
    seconds = counters.get(names.TIME, 0.0)
    shares[Term.LAUNCH if seconds < 1e-5 else Term.TAIL] = 1.0 - active
    accesses = _accesses(counters)
    wasted = _wasted(accesses, access_bytes)
    worst_access = None
    if wasted:
        kind, sectors, requests = max(accesses, key=lambda access: access[1] - access_bytes * access[2])
        worst_access = Excess(kind, sectors / requests, access_bytes)
    # Where no unit is busy, what is not needed still stands in the queues that the rest waits in.
    queued = shares[Term.LATENCY] * wasted
    operations = counters.get(names.L2_ATOMICS, 0.0) + counters.get(names.L2_REDUCTIONS, 0.0)
    atomics = 0.0
    if gpu is not None and operations:
        # The fraction of the time that they take if all are on one address.
        atomics = min(1.0, _fraction(operations * gpu.overheads.same_address_atomic, seconds))
    waiting = shares[Term.LATENCY] - queued
    shares[Term.ATOMICS] = waiting * atomics if atomics > 0.1 else 0.0
    shares[Term.LATENCY] = waiting * (1.0 - atomics)
    stalls = {stall: counters.get(stall, 0.0) for stall, *_ in WAITS}
    # For every instruction that a scheduler issues, so many of its warps are resident.
    warps = max(sum(stalls.values()), _warps_per_issue(counters, gpu))
    conflicting = _fraction(
        counters.get(names.BANK_CONFLICTS, 0.0), counters.get(names.SHARED_WAVEFRONTS, 0.0)
    )
    resident = counters.get(names.WARPS_ACTIVE, 0.0) / 100.0
    few_blocks = active < 0.5
    return Metrics(
        seconds=seconds,
        counters=counters,
        shares=dict.fromkeys(Term, 0.0) | shares,
        busy=dict.fromkeys(Term, 0.0) | busy,
        waits={stall: _fraction(value, warps) for stall, value in stalls.items()},
        crossed_bytes=SECTOR_BYTES * counters.get(names.L2_SECTORS, counters.get(names.L1_FROM_L2, 0.0)),
        resident=resident,
        low_occupancy=resident < 0.5,
        atomics=operations,
        conflicting=min(1.0, conflicting),
        uncoalesced=wasted,
        uncoalesced_elsewhere=queued,
        worst_access=worst_access,
        few_blocks=few_blocks,
        idle_text=f"on average the SMs are at work for {active:.0%} of the time; {'more' if few_blocks else 'smaller'} "
        "blocks of even length would fill them",
    )


def _accesses(counters: Counters) -> list[tuple[str, float, float]]:
    """Kind, sectors and requests of what global memory was asked for."""
    apart = [
        (kind, counters[sectors], counters[requests])
        for kind, sectors, requests in (
            ("load", names.LOAD_SECTORS, names.LOAD_REQUESTS),
            ("store", names.STORE_SECTORS, names.STORE_REQUESTS),
        )
        if counters.get(sectors) and counters.get(requests)
    ]
    together = counters.get(names.LOAD_REQUESTS, 0.0) + counters.get(names.STORE_REQUESTS, 0.0)
    if apart or names.L1_SECTORS not in counters or not together:
        return apart
    return [("access", counters[names.L1_SECTORS], together)]


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


def _warps_per_issue(counters: Counters, gpu: Architecture | None) -> float:
    """Resident warps of a scheduler for every instruction that it issues; 0 where that isn't known."""
    if gpu is None:
        return 0.0
    most = gpu.limits.max_threads / WARP_LANES / gpu.chip.schedulers
    return _fraction(counters.get(names.WARPS_ACTIVE, 0.0) * most, counters.get(names.ISSUE_ACTIVE, 0.0))


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


@dataclass(frozen=True)
class BusyTime:
    """Seconds of a run that a unit was busy, and the fraction of it; `name` is that of the model's term for it."""

    name: str
    seconds: float
    share: float


def busy_times(counters: Counters, gpu: Architecture | None = None) -> tuple[BusyTime, ...]:
    """How long each unit was busy, the longest first; nothing where neither times nor utilisations were read.

    Latency is the time in which the SMs have work and keep no unit busy, tail that in which they have none.
    """
    seconds = counters.get(names.TIME, 0.0)
    if not seconds or (names.SM_ACTIVE not in counters and gpu is None):
        return ()
    active, units = _utilisation(counters, gpu)
    fractions = _split_l1(units, counters) | {Term.TAIL: 1.0 - active}
    times = [BusyTime(term.value, seconds * share, share) for term, share in fractions.items() if share > 0]
    return tuple(sorted(times, key=lambda time: -time.share))


def busy_sentences(counters: Counters, gpu: Architecture | None = None) -> tuple[str, ...]:
    """Which unit is busy the longest in a measured run and which is next; nothing where counters don't tell."""
    busy = busy_times(counters, gpu)
    if not busy:
        return ()
    whole = time_text(counters[names.TIME], 3)
    binds = f"Bound by {_occupies(busy[0])} of a run of {whole} with counters."
    return (binds, *(f"Next is {_occupies(time)}." for time in busy[1:2]))


def _occupies(time: BusyTime) -> str:
    how = {Term.LATENCY.value: "no unit is busy for", Term.TAIL.value: "SMs have no work for"}
    return f"{time.name}: {how.get(time.name, 'busy for')} {time_text(time.seconds, 3)} ({time.share:.0%})"


def _utilisation(counters: Counters, gpu: Architecture | None) -> tuple[float, dict[Term, float]]:
    """How busy the SMs are and each unit is, as fractions of the whole time; LATENCY is what keeps nothing busy.

    L1 and shared memory are one unit here. With a description of the GPU, what was not measured is worked out from
    totals, where these are there.
    """
    active = min(1.0, counters.get(names.SM_ACTIVE, 100.0) / 100.0)
    totals = _from_totals(counters, gpu) if gpu and counters.get(names.TIME) else {}

    def fraction(name: str, scale: float = 1.0) -> float:
        return min(1.0, scale * counters.get(name, totals.get(name, 0.0)) / 100.0)

    busy = {
        Term.DRAM: min(1.0, fraction(names.DRAM_THROUGHPUT) / REACHABLE_DRAM),
        Term.L2: max(map(fraction, (names.L2_BUSY, names.L2_SENDING, names.L2_RECEIVING))),
        Term.GLOBAL_WAVEFRONTS: fraction(names.WAVEFRONTS_BUSY),
        Term.ISSUE: fraction(names.ISSUE_ACTIVE, active),
        Term.TENSOR: max(fraction(names.TENSOR_BUSY, active), fraction(names.TENSOR_ACTIVE, active)),
        Term.FMA: fraction(names.FMA_BUSY, active),
        Term.ALU: fraction(names.ALU_BUSY, active),
        Term.SPECIAL: fraction(names.SPECIAL_BUSY, active),
    }
    # What keeps nothing busy is waiting, as far as the SMs have something to wait for.
    return active, {**busy, Term.LATENCY: max(0.0, active - max(busy.values()))}


def _split_l1(units: Mapping[Term, float], counters: Counters) -> dict[Term, float]:
    """With L1's part divided between global and shared memory, by the wavefronts of either."""
    wavefronts = counters.get(names.SHARED_WAVEFRONTS, 0.0)
    shared = _fraction(wavefronts, counters.get(names.WAVEFRONTS, 0.0))
    whole = units[Term.GLOBAL_WAVEFRONTS]
    return {**units, Term.GLOBAL_WAVEFRONTS: whole * (1.0 - shared), Term.SHARED_WAVEFRONTS: whole * shared}


def _from_totals(counters: Counters, gpu: Architecture) -> dict[str, float]:
    """Utilisations in percent from totals, for counters that were read without them."""
    seconds = counters[names.TIME]
    cycles = counters.get(names.CYCLES, seconds * gpu.chip.clock_hz) * gpu.chip.sms
    a_sector = 100.0 * SECTOR_BYTES / (gpu.memory.l2_bytes_per_second * seconds)
    sent = counters.get(names.L2_READS, counters.get(names.L1_FROM_L2, 0.0))
    dram = REACHABLE_DRAM * dram_bytes(counters) / (gpu.memory.dram_bytes_per_second * seconds)
    return {
        names.DRAM_THROUGHPUT: 100.0 * dram,
        names.L2_BUSY: a_sector * counters.get(names.L2_SECTORS, 0.0),
        names.L2_SENDING: SENDING * a_sector * sent,
        names.WAVEFRONTS_BUSY: 100.0 * counters.get(names.WAVEFRONTS, 0.0) / cycles,
        names.ISSUE_ACTIVE: 100.0 * counters.get(names.INSTRUCTIONS, 0.0) / (cycles * gpu.chip.schedulers),
    }


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
