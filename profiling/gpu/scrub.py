"""Overwriting what a run leaves in a GPU beside its memory: shared memory, registers, local memory.

None of it is cleared between launches, so a kernel could keep there what it has computed and copy it the next time.
"""

from __future__ import annotations

import numpy as np

from mctskernel.profiling.gpu.cuda_driver import (
    DeviceBuffer,
    Gpu,
    PreparedLaunch,
    multiprocessors,
    threads_per_multiprocessor,
)
from mctskernel.profiling.gpu.digests import own_kernel

POISON = 0x7FCBCBCB
"""A quiet NaN in float32: a sum that it gets into is not right by chance."""

REGISTERS = 232
"""Written in each thread, of the 255 that there are; 256 threads own the whole register file."""

LOCAL_BYTES = (1 << 10, 1 << 13)
"""The frames of local memory that can be overwritten in every thread of the GPU; the last one takes 2 GB of it."""

_WAIT_CYCLES = 200_000
"""How long a block waits for the others to arrive: together they fill the GPU."""

_ARRIVAL = f"""
__device__ void arrive(unsigned* arrived) {{
    __syncthreads();
    if (threadIdx.x == 0) {{
        atomicAdd(arrived, 1u);
        const long long began = clock64();
        while (*(volatile unsigned*)arrived < gridDim.x && clock64() - began < {_WAIT_CYCLES}ll) {{}}
    }}
    __syncthreads();
}}
"""

# Values that are read before a barrier and needed after it are all in registers at once.
SHARED_SOURCE = f"""
{_ARRIVAL}
extern "C" __global__ void __launch_bounds__(256, 1) scrub(unsigned* arrived, unsigned words) {{
    extern __shared__ unsigned block_memory[];
    volatile unsigned* shared = block_memory;
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = {POISON}u;
    __syncthreads();
    unsigned values[{REGISTERS}], mixed = 0;
    #pragma unroll
    for (int k = 0; k < {REGISTERS}; ++k) values[k] = shared[threadIdx.x + k];
    arrive(arrived);
    const unsigned factor = shared[words - 1 - threadIdx.x] | 1u;
    #pragma unroll
    for (int k = 0; k < {REGISTERS}; ++k) mixed = (mixed ^ values[k]) * factor;
    if (mixed == 12345u) arrived[1] = mixed;
}}
"""

_LOCAL_KERNEL = """
extern "C" __global__ void __launch_bounds__(512) scrub_local_{nbytes}(unsigned* arrived, unsigned words) {{
    volatile unsigned frame[{nbytes} / 4];
    for (unsigned i = 0; i < words; ++i) frame[i] = {poison}u;
    arrive(arrived);
    if (frame[threadIdx.x % words] != {poison}u) arrived[1] = 1u;
}}
"""
LOCAL_SOURCE = _ARRIVAL + "".join(
    _LOCAL_KERNEL.format(nbytes=nbytes, poison=POISON) for nbytes in LOCAL_BYTES
)


class Scrub:
    """Overwrites the whole GPU's shared memory and registers, and its local memory where that is asked for."""

    def __init__(self, gpu: Gpu) -> None:
        self._arrived = DeviceBuffer(8)
        shared = own_kernel(SHARED_SOURCE, ("scrub",), gpu.architecture)
        self._shared = PreparedLaunch(
            shared,
            "scrub",
            grid=(multiprocessors(), 1, 1),
            block=(256, 1, 1),
            # As much as a block can have: one fits on each multiprocessor, and so each gets one.
            shared_bytes=gpu.max_shared_bytes,
            arguments=self._arguments(gpu.max_shared_bytes // 4),
        )
        names = tuple(f"scrub_local_{nbytes}" for nbytes in LOCAL_BYTES)
        local = own_kernel(LOCAL_SOURCE, names, gpu.architecture)
        self._local = [
            PreparedLaunch(
                local,
                name,
                grid=(multiprocessors() * (threads_per_multiprocessor() // 512), 1, 1),
                block=(512, 1, 1),
                shared_bytes=0,
                arguments=self._arguments(nbytes // 4),
            )
            for name, nbytes in zip(names, LOCAL_BYTES, strict=True)
        ]

    def __call__(self, local_bytes: int = 0) -> None:
        """Overwrite everything, and so many bytes of every thread's local memory, in stream order."""
        self._arrived.fill(0)
        self._shared()
        if local_bytes:
            fitting = (i for i, nbytes in enumerate(LOCAL_BYTES) if nbytes >= local_bytes)
            self._arrived.fill(0)
            self._local[next(fitting, -1)]()

    def _arguments(self, words: int) -> list[bytes]:
        return [np.uint64(self._arrived.address).tobytes(), np.uint32(words).tobytes()]
