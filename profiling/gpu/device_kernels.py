"""Kernels of the evaluator itself: digests of memory, and overwriting what a run leaves in registers and on chip.

A digest is 64 bits that change when a byte changes, taken at the rate of the memory, for what is too large to be
fetched after every run. The key is drawn anew in each process, so that two contents with one digest can't be prepared.
Taking one also resets the priority in the L2 cache that a kernel has asked for: such lines would outlast the flush
before the next run.

Shared memory, registers and local memory aren't cleared between launches, so a kernel could keep there what it has
computed and copy it the next time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.gpu.cuda_driver import (
    DeviceBuffer,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    fill_words,
    multiprocessors,
    threads_per_multiprocessor,
)

SLOTS = 1024  # how many digests fit before they must be read
THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 8
SEGMENTS = 128

SOURCE = f"""
struct Segment {{ const unsigned char* data; unsigned long long nbytes; }};
struct Segments {{ Segment each[{SEGMENTS}]; }};

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014), of a word and its place.
__device__ unsigned long long mixed(unsigned long long word, unsigned long long place) {{
    word ^= place * 0x9e3779b97f4a7c15ull;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}}

// The PTX instruction `applypriority` is the only way back from evict_last in stream order.
__device__ void give_up_priority(const void* address) {{
#if __CUDA_ARCH__ >= 800
    const unsigned long long line = __cvta_generic_to_global(address) & ~127ull;
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
#endif
}}

extern "C" __global__ void __launch_bounds__({THREADS}) digest(
    const __grid_constant__ Segments segments, unsigned long long key, unsigned long long* sum
) {{
    const Segment segment = segments.each[blockIdx.y];
    const unsigned long long first = key + ((unsigned long long)blockIdx.y << 40);
    // Single bytes up to a multiple of 16 bytes, and behind the last one.
    const unsigned long long aligned = (0ull - (unsigned long long)segment.data) % 16;
    const unsigned long long head = aligned < segment.nbytes ? aligned : segment.nbytes;
    const unsigned long long pairs = (segment.nbytes - head) / 16, tail = head + 16 * pairs;
    const ulonglong2* data = reinterpret_cast<const ulonglong2*>(segment.data + head);
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long own = 0;
    #pragma unroll 4
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += step) {{
        const ulonglong2 pair = data[i];
        if (i == 0 || (unsigned long long)(data + i) % 128 == 0) give_up_priority(data + i);
        own += mixed(pair.x, first + 2 * i) + mixed(pair.y, first + 2 * i + 1);
    }}
    if (blockIdx.x == 0 && threadIdx.x < 32) {{
        const unsigned long long i = threadIdx.x < 16 ? threadIdx.x : tail + threadIdx.x - 16;
        if (i < (threadIdx.x < 16 ? head : segment.nbytes)) {{
            own += mixed(segment.data[i], first + (1ull << 39) + threadIdx.x);
        }}
    }}
    for (int lanes = 16; lanes; lanes /= 2) own += __shfl_down_sync(0xffffffffu, own, lanes);
    if (threadIdx.x % 32 == 0 && own) atomicAdd(sum, own);
}}
"""


class Segment(NamedTuple):
    """Bytes on the GPU."""

    address: int
    nbytes: int


class Digests:
    """Digests by slot, in stream order. Raises CudaError when the GPU has no room for them."""

    def __init__(self, architecture: str) -> None:
        self._key = secrets.randbits(64)
        self._module = own_kernel(SOURCE, ("digest",), architecture)
        self._slots = DeviceBuffer(8 * SLOTS)
        self._salts = [0] * SLOTS
        self._most_blocks = BLOCKS_PER_MULTIPROCESSOR * multiprocessors()

    def take(self, segments: Sequence[Segment], slot: int) -> None:
        """Put the digest of some bytes, in their order, into a slot. Nothing waits."""
        address = self._slots.address + 8 * slot
        # A slot begins with a random number: a digest that is copied from another slot is wrong.
        word = self._salts[slot] = secrets.randbits(32)
        fill_words(address, word, 2)
        for start in range(0, len(segments), SEGMENTS):
            self._launch(segments[start : start + SEGMENTS], start, address)

    def read(self, count: int) -> list[int]:
        """The digests in the first slots, after everything launched before."""
        found = self._slots.read(np.dtype(np.uint64), count)
        return [
            (int(value) - (salt << 32 | salt)) % (1 << 64)
            for value, salt in zip(found, self._salts[:count], strict=True)
        ]

    def now(self, segments: Sequence[Segment]) -> int:
        """The digest of some bytes, after everything launched before. Uses the last slot."""
        self.take(segments, SLOTS - 1)
        value = self._slots.read(np.dtype(np.uint64), 1, 8 * (SLOTS - 1))[0]
        return (int(value) - (self._salts[-1] << 32 | self._salts[-1])) % (1 << 64)

    def _launch(self, segments: Sequence[Segment], start: int, address: int) -> None:
        table = np.zeros((SEGMENTS, 2), np.uint64)
        table[: len(segments)] = segments
        largest = max(segment.nbytes for segment in segments)
        blocks = min(max(1, -(-largest // (4 * 16 * THREADS))), self._most_blocks)
        PreparedLaunch(
            self._module,
            "digest",
            grid=(blocks, len(segments), 1),
            block=(THREADS, 1, 1),
            arguments=[
                table.tobytes(),
                np.uint64((self._key + (start << 48)) % (1 << 64)).tobytes(),
                np.uint64(address).tobytes(),
            ],
        )()


def own_kernel(source: str, names: Sequence[str], architecture: str) -> LoadedModule:
    """Build and load a kernel of the evaluator."""
    made = build(Kernel(source), names, architecture)
    if isinstance(made, BuildFailure):
        raise RuntimeError(f"A kernel of the evaluator can't be built for {architecture}: {made.message}")
    return LoadedModule(made.cubin)


POISON = 0x7FCBCBCB  # a quiet NaN in float32: a sum that it gets into is not right by chance
REGISTERS = 232  # written in each thread, of the 255 that there are; 256 threads own the whole register file

LOCAL_BYTES = (1 << 10, 1 << 13)
"""The frames of local memory that can be overwritten in every thread of the GPU; the last one takes 2 GB of it."""

_WAIT_CYCLES = 200_000  # how long a block waits for the others to arrive: together they fill the GPU

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
