"""A GPU on paper whose constants are known: it answers with the times that they imply, and some noise.

Each law is written down from what the kernel does, not from the microbenchmark's own account of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark
from mctskernel.profiling.gpu.cuda_driver import CudaError


class PaperGpu:
    """Answers microbenchmarks as `truth` would. Times of `broken` constants are overwritten by what is given there."""

    def __init__(
        self,
        truth: Architecture,
        noise: float = 0.005,
        broken: Mapping[str, Callable[[int], float]] | None = None,
    ) -> None:
        self.truth = truth
        self.board = Board(
            truth.name,
            truth.architecture,
            truth.chip.sms,
            truth.memory.l2_bytes,
            truth.limits.max_shared_bytes_per_block,
            {
                "chip.sms": truth.chip.sms,
                "memory.l2_bytes": truth.memory.l2_bytes,
                **{
                    f"limits.{key}": value
                    for key, value in msgspec.to_builtins(truth.limits).items()
                    if key in DRIVER_KNOWS
                },
            },
        )
        self.asked: list[str] = []
        self.held = ""
        self._random = np.random.default_rng(1)
        self._noise = noise
        self._broken = dict(broken or {})

    def seconds(self, benchmark: Microbenchmark, length: int) -> float:
        assert 1 <= length <= benchmark.most
        self.asked.append(benchmark.constant)
        self.held = benchmark.constant
        if benchmark.constant in self._broken:
            return self._broken[benchmark.constant](length)
        begin = 3e-6 if benchmark.grows is not Grows.NOTHING else 0.0
        seconds = begin + laws(self.truth)[benchmark.constant](length)
        return seconds * (1 + self._noise * float(self._random.standard_normal()))

    def release(self) -> None:
        self.held = ""


DRIVER_KNOWS = frozenset(
    {
        "max_threads",
        "max_blocks",
        "registers",
        "shared_bytes",
        "max_shared_bytes_per_block",
        "reserved_shared_bytes",
    }
)


def refuse(length: int) -> float:
    """What a GPU without room answers."""
    raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")


def laws(gpu: Architecture) -> dict[str, Callable[[int], float]]:
    """Seconds that each loop takes for a length."""
    clock, sms = gpu.chip.clock_hz, gpu.chip.sms
    threads = 2048 * sms

    def lanes(rate: float, per_round: int = 512) -> Callable[[int], float]:
        return lambda rounds: rounds * per_round * threads / (rate * sms * clock)

    def cycles(each: float, per_round: int) -> Callable[[int], float]:
        return lambda rounds: rounds * per_round * each / clock

    def per_second(amount: float, rate: float) -> Callable[[int], float]:
        return lambda length: length * amount / rate

    rates, memory, latency, overheads = gpu.throughput, gpu.memory, gpu.latency, gpu.overheads
    mma_multiply_adds = 8 * 16 * 8 * 16 * (2 * sms * 512 // 32)
    return {
        "chip.clock_hz": lambda length: length / clock,
        "issue": lanes(32 * gpu.chip.schedulers * 0.98),
        "throughput.fma": lanes(rates.fma),
        "throughput.alu": lanes(rates.alu),
        "throughput.special": lanes(rates.special),
        "throughput.fp64": lanes(rates.fp64),
        "throughput.shuffle": lanes(rates.shuffle),
        "throughput.tensor_sync_fma": (
            lambda rounds: rounds * mma_multiply_adds / (rates.tensor_sync_fma * sms * clock)
        ),
        "throughput.tensor_fma": lambda rounds: rounds * 4 * 64 * 256 * 16 * 2 / (rates.tensor_fma * clock),
        "latency.special": cycles(latency.special, 512),
        "latency.barrier": cycles(latency.barrier, 64),
        "latency.shared": cycles(latency.shared, 32),
        "latency.l1": cycles(latency.l1, 32),
        "latency.l2": cycles(latency.l2, 32),
        "latency.dram": cycles(latency.dram, 4),
        "memory.l2_bytes_per_second": per_second(4 * sms * 256 * 8 * 16, memory.l2_bytes_per_second),
        "memory.l2_write_bytes_per_second": per_second(
            4 * sms * 256 * 8 * 16, memory.l2_write_bytes_per_second
        ),
        "overheads.same_address_atomic": lambda rounds: (
            rounds * sms * 128 * 4 * overheads.same_address_atomic
        ),
        "memory.dram_bytes_per_second": per_second(2 * 256 * 64, memory.dram_bytes_per_second),
        "overheads.launch": lambda _: overheads.launch,
        "overheads.launch_to_launch": lambda launches: launches * overheads.launch_to_launch,
        "overheads.block_launch": lambda blocks: blocks * overheads.block_launch,
        "latency.block_turnover": lambda blocks: math.ceil(blocks / sms) * latency.block_turnover / clock,
    }
