"""Microbenchmarks of what starting a kernel and its blocks costs."""

from __future__ import annotations

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Unit

EMPTY_SOURCE = """
extern "C" __global__ void probe() {}
"""

QUEUED = 300
"""Launches at the most, which the driver takes without waiting for the first to end."""


def launch() -> Microbenchmark:
    """One block of one warp that does nothing, between two events: here the time itself counts, not its slope."""
    return Microbenchmark(
        "overheads.launch",
        "one kernel that does nothing, between two events",
        EMPTY_SOURCE,
        1,
        32,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.NOTHING,
        buffers=(),
    )


def launch_to_launch() -> Microbenchmark:
    """Kernels that do nothing, one behind the other in a full queue: from one launch to the next."""
    return Microbenchmark(
        "overheads.launch_to_launch",
        "from one kernel that does nothing to the next",
        EMPTY_SOURCE,
        1,
        32,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.LAUNCHES,
        first=QUEUED // 3,
        most=QUEUED,
        buffers=(),
    )


def block_launch() -> Microbenchmark:
    """Blocks of 128 threads that do nothing, on the whole GPU."""
    return Microbenchmark(
        "overheads.block_launch",
        "blocks of 128 threads that do nothing",
        EMPTY_SOURCE,
        0,
        128,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.BLOCKS,
        first=100_000,
        most=30_000_000,
        buffers=(),
    )


def block_turnover(board: Board) -> Microbenchmark:
    """Blocks of 1024 threads of which an SM holds one, because each takes most of the shared memory."""
    return Microbenchmark(
        "latency.block_turnover",
        "from a block of 1024 threads that does nothing to the next on the same SM",
        EMPTY_SOURCE,
        0,
        1024,
        Unit.CYCLES,
        1 / board.sms,
        {"EXIT": 1},
        grows=Grows.BLOCKS,
        first=100 * board.sms,
        most=100_000 * board.sms,
        shared_bytes=board.max_shared_bytes // 10 * 9,
        buffers=(),
    )
