"""Kernels ready to launch on a GPU, for tests of the counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, Gpu, LoadedModule, PreparedLaunch, open_gpu

N = 32 << 20
"""Floats in each of the two buffers: 128 MiB, more than twice what the L2 of an H100 holds."""

SOURCE = r"""
#define N (32 << 20)

extern "C" __global__ void copy(const float4* in, float4* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void block_sums(const float* in, float* out) {
    __shared__ float partial[256];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += in[blockIdx.x * 4096 + k * 256 + t];
    partial[t] = sum;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) partial[t] += partial[t + step];
    }
    if (t == 0) atomicAdd(out, partial[0]);
}

extern "C" __global__ void multiply_adds(const float* in, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x[4], a = in[i], b = 0.5f;
    for (int j = 0; j < 4; ++j) x[j] = j;
    for (int k = 0; k < 512; ++k) {
        for (int j = 0; j < 4; ++j) x[j] = fmaf(x[j], a, b);
    }
    out[i] = x[0] + x[1] + x[2] + x[3];
}
"""

LAUNCHES: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "copy": ((N // 4 // 256, 1, 1), (256, 1, 1)),
    "block_sums": ((N // 4096, 1, 1), (256, 1, 1)),
    "multiply_adds": ((16384, 1, 1), (256, 1, 1)),
}
"""Grid and block of each kernel of `SOURCE`."""


@dataclass(frozen=True)
class Workbench:
    """The GPU and its kernels, ready to run."""

    gpu: Gpu
    launches: Mapping[str, PreparedLaunch]


@contextmanager
def opened_workbench() -> Iterator[Workbench]:
    """Build the kernels and place their data on the first GPU."""
    gpu = open_gpu()
    made = build(Kernel(SOURCE), tuple(LAUNCHES), gpu.architecture)
    if isinstance(made, BuildFailure):
        raise RuntimeError(made.message)
    with ExitStack() as stack:
        buffers = [DeviceBuffer(4 * N), DeviceBuffer(4 * N)]
        for buffer in buffers:
            stack.callback(buffer.free)
        buffers[0].write(np.random.default_rng(0).uniform(-1, 1, N).astype(np.float32))
        module = LoadedModule(made.cubin)
        stack.callback(module.unload)
        arguments = [np.uint64(buffer.address).tobytes() for buffer in buffers]
        launches = {
            name: PreparedLaunch(
                module, made.entries[name], grid=grid, block=block, shared_bytes=0, arguments=arguments
            )
            for name, (grid, block) in LAUNCHES.items()
        }
        yield Workbench(gpu, launches)
