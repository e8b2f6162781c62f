"""How busy each unit of a GPU is, from its hardware counters: what the model's terms look like from outside."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.quantities import time_text

SECTOR_BYTES = 32
REACHABLE_DRAM = 0.92
"""What a copy keeps DRAM busy at most, as a fraction of its peak: measured on an H100."""

SENDING = 0.93
"""How busy L2 is with sending when reads keep it as busy as they can: read, the two go together on an H100."""

Counters = Mapping[str, float]


class Unit(enum.Enum):
    """The units that counters tell apart, and LATENCY for none of them."""

    DRAM = enum.auto()
    L2 = enum.auto()
    L1 = enum.auto()
    ISSUE = enum.auto()
    TENSOR = enum.auto()
    FMA = enum.auto()
    ALU = enum.auto()
    SPECIAL = enum.auto()
    LATENCY = enum.auto()


@dataclass(frozen=True)
class Utilisation:
    """How busy each unit is, as a fraction of the whole time; `active` is the same of the multiprocessors."""

    of: Mapping[Unit, float]
    active: float


def utilisation(counters: Counters, gpu: Architecture | None = None) -> Utilisation:
    """The utilisation of every unit.

    With a description of the GPU, what was not measured is worked out from totals, where these are there.
    """
    active = min(1.0, counters.get(names.SM_ACTIVE, 100.0) / 100.0)
    derived = _derived(counters, gpu) if gpu is not None else {}

    def fraction(name: str, scale: float = 1.0) -> float:
        return min(1.0, scale * counters.get(name, derived.get(name, 0.0)) / 100.0)

    of = {
        Unit.DRAM: min(1.0, fraction(names.DRAM_THROUGHPUT) / REACHABLE_DRAM),
        Unit.L2: max(map(fraction, _L2_PARTS)),
        Unit.L1: fraction(names.WAVEFRONTS_BUSY),
        Unit.ISSUE: fraction(names.ISSUE_ACTIVE, active),
        Unit.TENSOR: max(fraction(names.TENSOR_BUSY, active), fraction(names.TENSOR_ACTIVE, active)),
        Unit.FMA: fraction(names.FMA_BUSY, active),
        Unit.ALU: fraction(names.ALU_BUSY, active),
        Unit.SPECIAL: fraction(names.SPECIAL_BUSY, active),
    }
    # What keeps nothing busy is waiting, as far as the multiprocessors have something to wait for.
    of[Unit.LATENCY] = max(0.0, active - max(of.values()))
    return Utilisation(of, active)


@dataclass(frozen=True)
class BusyTime:
    """Seconds of a run that a unit was busy, and the fraction of it; `name` is that of the model's term for it."""

    name: str
    seconds: float
    share: float


def busy_times(counters: Counters, gpu: Architecture | None = None) -> tuple[BusyTime, ...]:
    """How long each unit was busy, the longest first; nothing where neither times nor utilisations were read.

    Latency is the time in which the multiprocessors have work and keep no unit busy, tail that in which they have
    none.
    """
    seconds = counters.get(names.TIME, 0.0)
    if not seconds or (names.SM_ACTIVE not in counters and gpu is None):
        return ()
    busy = utilisation(counters, gpu)
    wavefronts = counters.get(names.WAVEFRONTS, 0.0)
    shared = counters.get(names.SHARED_WAVEFRONTS, 0.0) / wavefronts if wavefronts else 0.0
    fractions = {term: busy.of[unit] for unit, term in _TERMS.items()}
    fractions |= {
        Term.GLOBAL_WAVEFRONTS: busy.of[Unit.L1] * (1.0 - shared),
        Term.SHARED_WAVEFRONTS: busy.of[Unit.L1] * shared,
        Term.TAIL: 1.0 - busy.active,
    }
    times = [
        BusyTime(term.value, seconds * fraction, fraction)
        for term, fraction in fractions.items()
        if fraction > 0
    ]
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
    return (
        f"{time.name}: {_OCCUPIES.get(time.name, 'busy for')} {time_text(time.seconds, 3)} ({time.share:.0%})"
    )


_TERMS = {
    Unit.DRAM: Term.DRAM,
    Unit.L2: Term.L2,
    Unit.ISSUE: Term.ISSUE,
    Unit.TENSOR: Term.TENSOR,
    Unit.FMA: Term.FMA,
    Unit.ALU: Term.ALU,
    Unit.SPECIAL: Term.SPECIAL,
    Unit.LATENCY: Term.LATENCY,
}

_OCCUPIES: Mapping[str, str] = {
    Term.LATENCY: "no unit is busy for",
    Term.TAIL: "multiprocessors have no work for",
}

_L2_PARTS = (names.L2_BUSY, names.L2_SENDING, names.L2_RECEIVING)


def _derived(counters: Counters, gpu: Architecture) -> dict[str, float]:
    """Utilisations in percent from totals, for counters that were read without them."""
    seconds = counters.get(names.TIME, 0.0)
    if not seconds:
        return {}
    cycles = counters.get(names.CYCLES, seconds * gpu.chip.clock_hz) * gpu.chip.sms
    dram = counters.get(
        names.DRAM_BYTES, counters.get(names.DRAM_READ, 0.0) + counters.get(names.DRAM_WRITE, 0.0)
    )
    l2_bytes = SECTOR_BYTES * counters.get(names.L2_SECTORS, 0.0)
    sent_bytes = SECTOR_BYTES * counters.get(names.L2_READS, counters.get(names.L1_FROM_L2, 0.0))
    issued = counters.get(names.INSTRUCTIONS, 0.0)
    return {
        names.DRAM_THROUGHPUT: 100.0 * REACHABLE_DRAM * dram / (gpu.memory.dram_bytes_per_second * seconds),
        names.L2_BUSY: 100.0 * l2_bytes / (gpu.memory.l2_bytes_per_second * seconds),
        names.L2_SENDING: SENDING * 100.0 * sent_bytes / (gpu.memory.l2_bytes_per_second * seconds),
        names.WAVEFRONTS_BUSY: 100.0 * counters.get(names.WAVEFRONTS, 0.0) / cycles,
        names.ISSUE_ACTIVE: 100.0 * issued / (cycles * gpu.chip.schedulers),
        names.FMA_BUSY: _pipe(counters, names.FMA_INSTRUCTIONS, cycles * gpu.throughput.fma),
        names.ALU_BUSY: _pipe(counters, names.ALU_INSTRUCTIONS, cycles * gpu.throughput.alu),
    }


def _pipe(counters: Counters, name: str, lanes: float) -> float:
    return 100.0 * WARP_LANES * counters.get(name, 0.0) / lanes
