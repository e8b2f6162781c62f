"""Which counters are read of every kernel that is right.

A pass runs the kernel once more and collects as many counters as the chip has registers for, so counters that share
passes come for nothing. What a pass costs is not the run but the driver, which sets up the registers of every unit that
counts, for one GPU of a machine at a time: those of the multiprocessors are cheap, those of L2's slices and of L1's
sectors are dear. `mctskernel.experiments.counter_cost` prints what the sets cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from mctskernel.core.executor import CounterSet
from mctskernel.profiling import counters as names

DEFAULT_METRICS = (
    names.TIME,
    names.CYCLES,
    names.INSTRUCTIONS,
    names.ISSUE_ACTIVE,
    names.WARPS_ACTIVE,
    names.SM_ACTIVE,
    names.DRAM_READ,
    names.DRAM_WRITE,
    names.DRAM_BYTES,
    names.DRAM_THROUGHPUT,
    names.LOAD_REQUESTS,
    names.LOAD_SECTORS,
    names.STORE_REQUESTS,
    names.STORE_SECTORS,
    names.WAVEFRONTS,
    names.WAVEFRONTS_BUSY,
    names.SHARED_WAVEFRONTS,
    names.BANK_CONFLICTS,
    names.L2_SECTORS,
    names.L2_READS,
    names.L2_WRITES,
    names.L2_BUSY,
    names.L2_RECEIVING,
    names.L2_ATOMICS,
    names.L2_REDUCTIONS,
    names.TENSOR_ACTIVE,
    names.TENSOR_BUSY,
    names.FMA_BUSY,
    names.ALU_BUSY,
    names.SPECIAL_BUSY,
    names.ACTIVE_LANES,
    names.STALL_LONG_SCOREBOARD,
    names.STALL_BARRIER,
    names.STALL_SHORT_SCOREBOARD,
    names.STALL_LG_THROTTLE,
)
"""What the diagnosis reads, in at most four passes on an H100 (GH100).

How busy L2 is with sending (`L2_SENDING`) is not read: it would take a pass of L2's own, and follows from what is read
there.
"""

DEAR_METRICS = tuple(
    name
    for name in DEFAULT_METRICS
    if name.startswith("lts__") or name in (names.LOAD_SECTORS, names.STORE_SECTORS)
)
"""Those that few counters do without, counted by L2's slices and slice by slice in L1: two thirds of the cost, for a
third of the counters."""

STAND_INS = (names.L1_SECTORS, names.L1_FROM_L2)
"""What the multiprocessors say of the same for next to nothing: sectors of loads and stores in one number, and what L2
sends them."""

METRICS: Mapping[CounterSet, tuple[str, ...]] = {
    CounterSet.ALL: DEFAULT_METRICS,
    CounterSet.FEW: (*(name for name in DEFAULT_METRICS if name not in DEAR_METRICS), *STAND_INS),
    CounterSet.TIME: (names.TIME,),
}
"""The counters of each set."""

FEWER_REMARK = (
    "Few counters were read: those of L2, and loads apart from stores, were left out, because the driver counts for "
    "one GPU of a machine at a time, and the others would wait. --counters all reads them."
)


def counters_for(gpus: int, wanted: CounterSet | None = None) -> CounterSet:
    """The set that so many GPUs of one machine read where nobody says which."""
    return wanted or (CounterSet.FEW if gpus > 1 else CounterSet.ALL)


def fewer_remarks(counters: CounterSet, wanted: CounterSet | None) -> tuple[str, ...]:
    """What to say of a set that nobody asked for."""
    return (FEWER_REMARK,) if wanted is None and counters is not CounterSet.ALL else ()
