"""Kernels that do nothing but copy, or multiply-add in one pipe, and the rates that they reach on the open GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.gpu.cuda_driver import (
    DeviceBuffer,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    Stopwatch,
    multiprocessors,
    synchronize,
)

COPY_BYTES = 512 << 20
"""Read, and as much written: ten times what the L2 of an H100 holds, so that little of it may stay there."""

REPEATS = 10

COPY_SOURCE = """
extern "C" __global__ void probe(const float4* __restrict__ in, float4* __restrict__ out) {
    size_t i = blockIdx.x * (size_t)(4 * blockDim.x) + threadIdx.x;
    float4 values[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = in[i + k * blockDim.x];
    #pragma unroll
    for (int k = 0; k < 4; ++k) out[i + k * blockDim.x] = values[k];
}
"""

# Eight chains hide the latency of a multiply-add (4 cycles) even with one warp on a scheduler. The comparison
# at the end can't be decided by the compiler, so the sums must be computed.
FP32_SOURCE = """
extern "C" __global__ void probe(float* out, int rounds) {
    float x[8], a = 1.0f + threadIdx.x * 1e-9f, b = blockIdx.x * 1e-9f;
    for (int j = 0; j < 8; ++j) x[j] = j + a;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
            #pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = fmaf(x[j], a, b);
        }
    }
    float sum = 0.0f;
    for (int j = 0; j < 8; ++j) sum += x[j];
    if (sum == 12345.0f) out[threadIdx.x] = sum;
}
"""
_FP32_THREADS = 1024
_FP32_ROUNDS = 2048
_FP32_FLOPS = 2 * 16 * 8
"""Of one thread in one round."""


def mma_source(chains: int = 8, steps: int = 1) -> str:
    """In a round, so many m16n8k16 products, one after another, for each of so many independent sums."""
    return f"""
extern "C" __global__ void probe(float* out, int rounds) {{
    float d[{chains}][4] = {{}};
    unsigned a[4] = {{threadIdx.x, 0u, 0u, 0u}}, b[2] = {{0u, 0u}};
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        #pragma unroll
        for (int k = 0; k < {steps * chains}; ++k) {{
            const int j = k % {chains};
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }}
    }}
    float sum = 0.0f;
    for (int j = 0; j < {chains}; ++j) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    if (sum == 12345.0f) out[threadIdx.x] = sum;
}}
"""


MMA_SOURCE = mma_source()
MMA_THREADS = 512
_MMA_ROUNDS = 2048
MMA_FLOPS = 8 * (2 * 16 * 8 * 16)
"""Of one warp in one round."""

_WGMMA_N = 256
WGMMA_THREADS = 256
_WGMMA_ROUNDS = 1024
WGMMA_TILE_BYTES = 12288
WGMMA_FLOPS = 4 * (2 * 64 * _WGMMA_N * 16)
"""Of one warpgroup (128 threads) in one round."""


def wgmma_source() -> str:
    """Four asynchronous m64n256k16 products a round on zeros in shared memory, whose layout then doesn't matter."""
    registers = _WGMMA_N // 2
    outputs = ", ".join(f"%{index}" for index in range(registers))
    bindings = ", ".join(f'"+f"(d[{index}])' for index in range(registers))
    product = (
        f"wgmma.mma_async.sync.aligned.m64n{_WGMMA_N}k16.f32.bf16.bf16 {{{outputs}}}, "
        f"%{registers}, %{registers + 1}, 1, 1, 1, 0, 0;"
    )
    return f"""
extern "C" __global__ void probe(float* out, int rounds) {{
    extern __shared__ __align__(128) unsigned char tile[];
    for (int i = threadIdx.x; i < {WGMMA_TILE_BYTES}; i += blockDim.x) tile[i] = 0;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    unsigned long long start = (unsigned long long)__cvta_generic_to_shared(tile) >> 4;
    // Matrix descriptors of the PTX ISA: address, leading and stride byte offset, all in units of 16 bytes.
    unsigned long long a = start | (8ull << 16) | (16ull << 32), b = a;
    float d[{registers}] = {{}};
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < 4; ++k) {{
            asm volatile("{product}" : {bindings} : "l"(a), "l"(b));
        }}
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }}
    float sum = 0.0f;
    for (int j = 0; j < {registers}; ++j) sum += d[j];
    if (sum == 12345.0f) out[threadIdx.x] = sum;
}}
"""


def copy_rate(gpu: Gpu) -> float:
    """Bytes per second of a copy, read and written. Raises CudaError when the GPU is too full for it."""
    threads, bytes_per_thread = 256, 4 * 16
    probe = _Probe(gpu.architecture, COPY_SOURCE, COPY_BYTES // (threads * bytes_per_thread), threads)
    with ExitStack() as stack:
        buffers = [DeviceBuffer(COPY_BYTES) for _ in range(2)]
        for buffer in buffers:
            stack.callback(buffer.free)
            buffer.fill(0)
        return 2 * COPY_BYTES / probe.best_seconds([buffer.address for buffer in buffers])


def fp32_rate(gpu: Gpu) -> float:
    """Operations per second of independent fp32 multiply-adds, two each."""
    probe = _Probe(gpu.architecture, FP32_SOURCE, 2 * multiprocessors(), _FP32_THREADS)
    flops = probe.blocks * probe.threads * _FP32_ROUNDS * _FP32_FLOPS
    return flops / _loop_seconds(probe, _FP32_ROUNDS)


def tensor_rate(gpu: Gpu) -> float:
    """Operations per second of dense bf16 tensor instructions: `wgmma` where there is one, otherwise `mma.sync`.

    The numbers are zeros, which cost the least power: no kernel gets a higher clock.
    """
    return wgmma_rate() if gpu.architecture == "sm_90" else mma_rate(gpu)


def mma_rate(gpu: Gpu) -> float:
    """Operations per second of bf16 `mma.sync` instructions."""
    probe = _Probe(gpu.architecture, MMA_SOURCE, 2 * multiprocessors(), MMA_THREADS)
    flops = probe.blocks * (probe.threads // 32) * _MMA_ROUNDS * MMA_FLOPS
    return flops / _loop_seconds(probe, _MMA_ROUNDS)


def wgmma_rate() -> float:
    """Operations per second of bf16 `wgmma` instructions, which Hopper alone has."""
    probe = _Probe("sm_90a", wgmma_source(), multiprocessors(), WGMMA_THREADS, WGMMA_TILE_BYTES)
    flops = probe.blocks * (probe.threads // 128) * _WGMMA_ROUNDS * WGMMA_FLOPS
    return flops / _loop_seconds(probe, _WGMMA_ROUNDS)


@dataclass(frozen=True)
class _Probe:
    """A kernel called `probe`, and how it is launched."""

    architecture: str
    source: str
    blocks: int
    threads: int
    shared_bytes: int = 0

    def best_seconds(self, addresses: Sequence[int], *numbers: int) -> float:
        """The shortest time of several launches with these arguments: pointers, then 32-bit whole numbers."""
        made = build(Kernel(self.source), ("probe",), self.architecture)
        if isinstance(made, BuildFailure):
            raise RuntimeError(f"A kernel of our own can't be built for {self.architecture}: {made.message}")
        module = LoadedModule(made.cubin)
        try:
            launch = PreparedLaunch(
                module,
                made.entries["probe"],
                grid=(self.blocks, 1, 1),
                block=(self.threads, 1, 1),
                shared_bytes=self.shared_bytes,
                arguments=[
                    *(np.uint64(address).tobytes() for address in addresses),
                    *(np.int32(number).tobytes() for number in numbers),
                ],
            )
            return min(_seconds(launch) for _ in range(REPEATS))
        finally:
            module.unload()


def _loop_seconds(probe: _Probe, rounds: int) -> float:
    out = DeviceBuffer(4 * probe.threads)
    try:
        return probe.best_seconds([out.address], rounds)
    finally:
        out.free()


def _seconds(launch: Callable[[], None]) -> float:
    stopwatch = Stopwatch()
    stopwatch.start()
    launch()
    stopwatch.stop()
    synchronize()
    return stopwatch.seconds
