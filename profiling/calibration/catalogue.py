"""Every microbenchmark, in the order in which they run."""

from __future__ import annotations

from mctskernel.profiling.calibration import arithmetic, latencies, launches, memory
from mctskernel.profiling.calibration.microbenchmark import Board, Microbenchmark


def clock(board: Board) -> Microbenchmark:
    """The first, because the others count in cycles."""
    return arithmetic.clock(board)


def microbenchmarks(board: Board) -> tuple[Microbenchmark, ...]:
    """All others that the GPU can run."""
    return (
        arithmetic.issue(board),
        arithmetic.fma(board),
        arithmetic.alu(board),
        arithmetic.special(board),
        arithmetic.fp64(board),
        arithmetic.shuffle(board),
        arithmetic.integer_multiply(board),
        arithmetic.mma(board),
        *((arithmetic.wgmma(board),) if board.architecture == "sm_90" else ()),
        arithmetic.alu_latency(),
        arithmetic.special_latency(),
        arithmetic.tensor_latency(),
        arithmetic.barrier_latency(),
        latencies.shared(),
        latencies.l1(),
        latencies.l2(),
        latencies.dram_idle(board),
        latencies.dram(board),
        memory.shared_loads(board),
        memory.shared_conflicts(board),
        memory.shared_8_bytes(board),
        memory.shared_16_bytes(board),
        memory.global_4_bytes(board),
        memory.global_8_bytes(board),
        memory.global_16_bytes(board),
        memory.l2_read(board),
        memory.l2_write(board),
        memory.l2_store_lines(board),
        memory.l2_atomics(board),
        memory.same_address_atomics(board),
        memory.dram_copy(),
        memory.dram_read(),
        memory.dram_write(),
        memory.dram_copy_in_runs(memory.SHORT_RUN),
        memory.dram_copy_in_runs(memory.LONG_RUN),
        launches.launch(),
        launches.launch_to_launch(),
        launches.block_launch(),
        launches.block_turnover(board),
    )
