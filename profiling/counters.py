"""Nsight Compute's names for what the model knows: a reader sees the same ones with and without a GPU.

Units are Nsight Compute's base units: seconds, bytes, counts, fractions of peak in percent.

A pass runs the kernel once more and reads as many counters as the chip has registers for. It costs the driver's set-up
of the registers, for one GPU of a machine at a time: cheap for the multiprocessors, expensive for L2's slices and L1's
sectors (docs/evaluator.md has the figures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mctskernel.core.executor import CounterSet
from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.machine_code.functions import Pipe
from mctskernel.profiling.model.price import Price, Term, sm_cycles_per_second

if TYPE_CHECKING:
    # Only what is priced needs a compiler; what binds a kernel is read where there is none.
    from mctskernel.profiling.model.work import KernelWork

Counters = Mapping[str, float]

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
INSTRUCTIONS = "smsp__inst_executed.sum"
DRAM_BYTES = "dram__bytes.sum"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITE = "dram__bytes_write.sum"
DRAM_THROUGHPUT = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
SECTORS_PER_LOAD = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
SECTORS_PER_STORE = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
WAVEFRONTS_BUSY = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
BANK_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
L1_SECTORS = "l1tex__t_sectors.sum"
L1_FROM_L2 = "l1tex__m_xbar2l1tex_read_sectors.sum"
L2_SECTORS = "lts__t_sectors_srcunit_tex.sum"
L2_READS = "lts__t_sectors_srcunit_tex_op_read.sum"
L2_WRITES = "lts__t_sectors_srcunit_tex_op_write.sum"
L2_BUSY = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"
L2_SENDING = "lts__lts2xbar_cycles_active.avg.pct_of_peak_sustained_elapsed"
L2_RECEIVING = "lts__xbar2lts_cycles_active.avg.pct_of_peak_sustained_elapsed"
L2_ATOMICS = "lts__t_sectors_op_atom.sum"
L2_REDUCTIONS = "lts__t_sectors_op_red.sum"
SM_ACTIVE = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
TENSOR_ACTIVE = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
TENSOR_BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
FMA_BUSY = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
ALU_BUSY = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
SPECIAL_BUSY = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
FMA_INSTRUCTIONS = "smsp__inst_executed_pipe_fma.sum"
ALU_INSTRUCTIONS = "smsp__inst_executed_pipe_alu.sum"
ACTIVE_LANES = "smsp__thread_inst_executed_per_inst_executed.ratio"
STALL_LONG_SCOREBOARD = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
STALL_BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
STALL_SHORT_SCOREBOARD = "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio"
STALL_LG_THROTTLE = "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio"
REGISTERS = "launch__registers_per_thread"
SHARED_BYTES = "launch__shared_mem_per_block"
WAVES = "launch__waves_per_multiprocessor"
OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"


def modelled_counters(work: KernelWork, price: Price, gpu: Architecture) -> dict[str, float]:
    """Counters of one launch."""
    dram = work.dram_read_bytes + work.dram_write_bytes
    l2 = work.l2_read_sectors + work.l2_write_sectors + work.spill_l2_sectors
    waves = work.blocks / (gpu.chip.sms * max(work.occupancy.blocks, 1))
    resident = min(float(work.occupancy.warps), work.blocks * work.warps / gpu.chip.sms)
    most = gpu.limits.max_threads / WARP_LANES
    # Shuffles pass where accesses to shared memory do, and are counted with them.
    shared = work.shared_wavefronts + work.shuffles
    issue = work.total_instructions / (gpu.chip.schedulers * sm_cycles_per_second(gpu) * price.seconds)
    return with_ratios(
        {
            TIME: price.seconds,
            INSTRUCTIONS: work.total_instructions,
            DRAM_BYTES: dram,
            DRAM_READ: work.dram_read_bytes,
            DRAM_WRITE: work.dram_write_bytes,
            DRAM_THROUGHPUT: 100.0 * dram / (gpu.memory.dram_bytes_per_second * price.seconds),
            SM_THROUGHPUT: 100.0 * max(price.terms[term] for term in _SM_TERMS) / price.seconds,
            LOAD_REQUESTS: work.load_requests,
            LOAD_SECTORS: work.load_sectors,
            STORE_REQUESTS: work.store_requests,
            STORE_SECTORS: work.store_sectors,
            WAVEFRONTS: work.global_wavefronts + shared + work.spill_wavefronts,
            SHARED_WAVEFRONTS: shared,
            BANK_CONFLICTS: work.conflict_wavefronts,
            L2_SECTORS: l2,
            L2_READS: work.l2_read_sectors,
            L2_WRITES: work.l2_write_sectors,
            WARPS_ACTIVE: 100.0 * resident / most,
            ISSUE_ACTIVE: 100.0 * min(issue, 1.0),
            TENSOR_ACTIVE: 100.0 * price.terms[Term.TENSOR] / price.seconds,
            FMA_INSTRUCTIONS: work.instructions.get(Pipe.FMA, 0.0),
            ALU_INSTRUCTIONS: work.instructions.get(Pipe.ALU, 0.0),
            ACTIVE_LANES: WARP_LANES * work.active_lanes,
            REGISTERS: float(work.registers),
            SHARED_BYTES: float(work.shared_bytes),
            WAVES: waves,
            OCCUPANCY: 100.0 * work.occupancy.fraction,
            **_stalls(work, resident / gpu.chip.schedulers, issue),
        }
    )


_SM_TERMS = (Term.ISSUE, Term.FMA, Term.ALU, Term.TENSOR, Term.GLOBAL_WAVEFRONTS, Term.SHARED_WAVEFRONTS)


def _stalls(work: KernelWork, warps_per_scheduler: float, issue: float) -> dict[str, float]:
    """Warps that wait for global memory, or at a barrier, for every instruction issued."""
    if not work.chain.cycles or not issue:
        return {}
    waiting = warps_per_scheduler / min(issue, 1.0) / work.chain.cycles
    return {
        STALL_LONG_SCOREBOARD: waiting * work.chain.global_memory,
        STALL_BARRIER: waiting * work.chain.barriers,
    }


def dram_bytes(counters: Counters) -> float:
    """What moved to and from DRAM, counted together or apart."""
    apart = counters.get(DRAM_READ, 0.0) + counters.get(DRAM_WRITE, 0.0)
    return counters.get(DRAM_BYTES, apart)


def combined_counters(launches: Sequence[Counters]) -> dict[str, float]:
    """Counters of a plan: totals add up, sectors per request follow from them, the rest is weighted by time."""
    names = dict.fromkeys(name for launch in launches for name in launch)
    return with_ratios(
        {name: _combined(name, [launch for launch in launches if name in launch]) for name in names}
    )


def with_ratios(counters: Counters) -> dict[str, float]:
    """With sectors per request, where their parts were read."""
    found = dict(counters)
    for ratio, sectors, requests in (
        (SECTORS_PER_LOAD, LOAD_SECTORS, LOAD_REQUESTS),
        (SECTORS_PER_STORE, STORE_SECTORS, STORE_REQUESTS),
    ):
        if found.get(requests) and sectors in found:
            found[ratio] = found[sectors] / found[requests]
    return found


def _combined(name: str, launches: Sequence[Counters]) -> float:
    if name.endswith(".sum") or name == CYCLES:
        return sum(launch[name] for launch in launches)
    weights = [launch.get(TIME, 1.0) for launch in launches]
    return sum(launch[name] * weight for launch, weight in zip(launches, weights, strict=True)) / sum(weights)


DEFAULT_METRICS = (
    TIME,
    CYCLES,
    INSTRUCTIONS,
    ISSUE_ACTIVE,
    WARPS_ACTIVE,
    SM_ACTIVE,
    DRAM_READ,
    DRAM_WRITE,
    DRAM_BYTES,
    DRAM_THROUGHPUT,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    STORE_REQUESTS,
    STORE_SECTORS,
    WAVEFRONTS,
    WAVEFRONTS_BUSY,
    SHARED_WAVEFRONTS,
    BANK_CONFLICTS,
    L2_SECTORS,
    L2_READS,
    L2_WRITES,
    L2_BUSY,
    L2_RECEIVING,
    L2_ATOMICS,
    L2_REDUCTIONS,
    TENSOR_ACTIVE,
    TENSOR_BUSY,
    FMA_BUSY,
    ALU_BUSY,
    SPECIAL_BUSY,
    ACTIVE_LANES,
    STALL_LONG_SCOREBOARD,
    STALL_BARRIER,
    STALL_SHORT_SCOREBOARD,
    STALL_LG_THROTTLE,
)
"""What the diagnosis reads, in at most four passes on an H100 (GH100).

How busy L2 is with sending (`L2_SENDING`) is not read: it would take a pass of L2's own, and follows from what is read
there.
"""

EXPENSIVE_METRICS = tuple(
    name for name in DEFAULT_METRICS if name.startswith("lts__") or name in (LOAD_SECTORS, STORE_SECTORS)
)
"""Those that few counters do without, counted by L2's slices and slice by slice in L1: two thirds of the cost, for a
third of the counters."""

STAND_INS = (L1_SECTORS, L1_FROM_L2)
"""What the multiprocessors say of the same for next to nothing: sectors of loads and stores in one number, and what L2
sends them."""

METRICS: Mapping[CounterSet, tuple[str, ...]] = {
    CounterSet.ALL: DEFAULT_METRICS,
    CounterSet.FEW: (*(name for name in DEFAULT_METRICS if name not in EXPENSIVE_METRICS), *STAND_INS),
    CounterSet.TIME: (TIME,),
}
"""The counters of each set."""

FEWER_NOTE = (
    "Few counters were read: those of L2, and loads apart from stores, were left out, because the driver counts for "
    "one GPU of a machine at a time, and the others would wait. --counters all reads them."
)


def counters_for(gpus: int, wanted: CounterSet | None = None) -> CounterSet:
    """The set to read: the wanted one, or the default for so many GPUs in one machine."""
    return wanted or (CounterSet.FEW if gpus > 1 else CounterSet.ALL)


def fewer_notes(counters: CounterSet, wanted: CounterSet | None) -> tuple[str, ...]:
    """A note if fewer counters are read than all without the user's choice."""
    return (FEWER_NOTE,) if wanted is None and counters is not CounterSet.ALL else ()
