"""Which counters are read of every kernel that is right.

A pass runs the kernel once more and collects as many counters as the chip has registers for, so passes are what
costs, and counters that share them come for nothing. `RangeProfiler.passes` says how many a set takes.
"""

from __future__ import annotations

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
    names.L1_HIT_RATE,
    names.WAVEFRONTS,
    names.WAVEFRONTS_BUSY,
    names.SHARED_WAVEFRONTS,
    names.BANK_CONFLICTS,
    names.L2_SECTORS,
    names.L2_READS,
    names.L2_WRITES,
    names.L2_BUSY,
    names.L2_SENDING,
    names.L2_RECEIVING,
    names.L2_HIT_RATE,
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
"""What the diagnosis reads, in at most four passes on an H100 (GH100)."""
