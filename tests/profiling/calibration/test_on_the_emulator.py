"""The microbenchmarks' kernels, run by the emulator: they stay in their buffers and go where they say."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.calibration.benchmarks import LONG_RUN, SHORT_RUN, microbenchmarks, runs_of
from mctskernel.profiling.calibration.machine import ring
from mctskernel.profiling.calibration.microbenchmark import KERNEL, Board, Grows, Microbenchmark, Ring
from mctskernel.profiling.emulator import Execution, Geometry, GlobalMemory, execute, parse_ptx

BOARD = Board("a small GPU", "sm_90", sms=2, l2_bytes=4 << 20, max_shared_bytes=48 << 10)
BENCHMARKS = {each.constant: each for each in microbenchmarks(BOARD)}
LENGTH = 2

RACES = {"memory.l2_write_bytes_per_second", "memory.l2_store_lines_per_second"}
"""Blocks that write the same places, which nobody reads."""


def bytes_touched(benchmark: Microbenchmark, nbytes: int) -> int:
    """What the run may touch of a buffer: all of it, or for what streams, its share and not a byte more."""
    for run in (SHORT_RUN, LONG_RUN):
        if benchmark.constant == runs_of(run):
            # Both blocks read along the same rows of 32 KB, and the second writes to as many behind them.
            return (LENGTH * 4096 // run - 1) * 32768 + LENGTH * run
    if benchmark.grows is Grows.BLOCKS:
        return LENGTH * int(benchmark.amount) // len(benchmark.buffers)
    if benchmark.constant == "latency.dram":
        return LENGTH * 4 * BOARD.sms * benchmark.threads * 4
    return nbytes


def run(benchmark: Microbenchmark) -> tuple[Execution, GlobalMemory, list[int]]:
    made = build(Kernel(benchmark.source), (KERNEL,), benchmark.code or BOARD.architecture)
    assert isinstance(made, Build)
    memory, arguments = GlobalMemory(), []
    for index, wanted in enumerate(benchmark.buffers):
        name = f"buffer{index}"
        size = bytes_touched(
            benchmark, min(wanted.nbytes, 1 << 20) if isinstance(wanted, Ring) else wanted.nbytes
        )
        address = memory.add(name, np.zeros(size, np.uint8)) if size else 0
        if isinstance(wanted, Ring):
            memory.array(name, np.uint64)[:] = ring(Ring(size, wanted.stride), address)
        arguments.append(address)
    addresses = list(arguments)
    if benchmark.grows is Grows.ROUNDS:
        arguments.append(LENGTH)
    blocks = LENGTH if benchmark.grows is Grows.BLOCKS else benchmark.blocks
    geometry = Geometry((blocks, 1, 1), (benchmark.threads, 1, 1), benchmark.shared_bytes)
    return execute(parse_ptx(made.ptx), KERNEL, geometry, arguments, memory), memory, addresses


@pytest.mark.parametrize("constant", [name for name, each in BENCHMARKS.items() if not each.code])
def test_a_kernel_stays_in_its_buffers(constant: str) -> None:
    execution, _, _ = run(BENCHMARKS[constant])
    found = {finding.kind for finding in execution.findings}
    assert found <= ({"race"} if constant in RACES else set()), [each.message for each in execution.findings]
    assert execution.completed
