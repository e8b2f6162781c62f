"""Kernels that double `x` into `out`, each by something that only Hopper and later GPUs have."""

from mctskernel.core.kernel import Kernel, Language

_ADDRESS = "(unsigned)__cvta_generic_to_shared"
_WAIT = r"""
__device__ void wait_for(unsigned barrier, unsigned parity) {
    for (unsigned done = 0; !done;) {
        asm volatile(
            "{\n\t.reg .pred ready;\n\tmbarrier.try_wait.parity.shared::cta.b64 ready, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, ready;\n\t}"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    }
}
"""

_BEGIN = """\
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
"""
_DOUBLE = """\
    wait_for(barrier, 0);
    tile[threadIdx.x] *= 2.0f;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
"""

CLUSTER = Kernel(
    rf"""/*
[[launch]]
kernel = "twice"
grid = ["2 * ceil_div(n, 64)"]
block = [64]
cluster = [2]
args = ["x", "out", "n"]
*/
// Both blocks of a cluster read the same elements; the first adds the other's, from its shared memory.
extern "C" __global__ void twice(const float* x, float* out, int n) {{
    __shared__ float tile[64];
    unsigned rank, other;
    float value;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int i = blockIdx.x / 2 * 64 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"({_ADDRESS}(tile + threadIdx.x)), "r"(rank ^ 1u));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(other) : "memory");
    const float sum = tile[threadIdx.x] + value;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 0 && i < n) out[i] = sum;
}}
"""
)
"""Distributed shared memory of a cluster."""

BULK = Kernel(
    rf"""/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
{_WAIT}
extern "C" __global__ void twice(const float* x, float* out, int n) {{
    __shared__ alignas(16) float tile[64];
    __shared__ alignas(8) unsigned long long full;
    const unsigned barrier = {_ADDRESS}(&full), memory = {_ADDRESS}(tile);
    const int first = blockIdx.x * 64, count = n - first < 64 ? n - first : 64;
    if (count < 64) {{
        // Bulk copies are of multiples of 16 bytes.
        if (threadIdx.x < count) out[first + threadIdx.x] = 2.0f * x[first + threadIdx.x];
        return;
    }}
{_BEGIN}    if (threadIdx.x == 0) {{
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(256) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            ::"r"(memory), "l"(__cvta_generic_to_global(x + first)), "r"(256), "r"(barrier) : "memory");
    }}
{_DOUBLE}    if (threadIdx.x == 0) {{
        asm volatile(
            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
            ::"l"(__cvta_generic_to_global(out + first)), "r"(memory), "r"(256) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
    }}
}}
"""
)
"""Bulk copies into shared memory, with an mbarrier, and back."""

TENSOR_MAPS = Kernel(
    rf"""/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x_map", "out_map"]

[[tensor_map]]
name = "x_map"
tensor = "x"
box = [64]

[[tensor_map]]
name = "out_map"
tensor = "out"
box = [64]
*/
#include <cuda.h>
{_WAIT}
extern "C" __global__ void twice(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap out_map
) {{
    __shared__ alignas(128) float tile[64];
    __shared__ alignas(8) unsigned long long full;
    const unsigned barrier = {_ADDRESS}(&full), memory = {_ADDRESS}(tile), first = blockIdx.x * 64;
{_BEGIN}    if (threadIdx.x == 0) {{
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(256) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{%2}}], [%3];"
            ::"r"(memory), "l"(&x_map), "r"(first), "r"(barrier) : "memory");
    }}
{_DOUBLE}    if (threadIdx.x == 0) {{
        asm volatile(
            "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {{%1}}], [%2];"
            ::"l"(&out_map), "r"(first), "r"(memory) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
    }}
}}
"""
)
"""TMA copies of a tensor of one axis: what lies beyond its end is zero, and isn't written but for the last 16 bytes."""

SWIZZLED = Kernel(
    rf"""/*
[[launch]]
kernel = "pad"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "padded", "n", "32 * ceil_div(n, 32)"]

[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 256)"]
block = [256]
shared = "8 * 128 + 1024"
programmatic = true
args = ["padded_map", "out", "n"]

[[scratch]]
name = "padded"
shape = ["ceil_div(n, 32)", 32]

[[tensor_map]]
name = "padded_map"
tensor = "padded"
box = [8, 32]
swizzle = 128
*/
#include <cuda.h>
{_WAIT}
extern "C" __global__ void pad(const float* x, float* padded, int n, int size) {{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < size) padded[i] = i < n ? x[i] : 0.0f;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}}

extern "C" __global__ void twice(const __grid_constant__ CUtensorMap padded_map, float* out, int n) {{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) unsigned long long full;
    const unsigned barrier = {_ADDRESS}(&full), start = {_ADDRESS}(memory), tile = (start + 1023) / 1024 * 1024;
{_BEGIN}    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (threadIdx.x == 0) {{
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(1024) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{%2, %3}}], [%4];"
            ::"r"(tile), "l"(&padded_map), "r"(0), "r"(8 * blockIdx.x), "r"(barrier) : "memory");
    }}
    wait_for(barrier, 0);
    // A swizzle of 128 bytes exchanges the 16-byte parts of a row by its number among eight.
    const int row = threadIdx.x / 32, column = threadIdx.x % 32, i = blockIdx.x * 256 + threadIdx.x;
    const int part = (column / 4) ^ row;
    const float* data = reinterpret_cast<const float*>(memory + (tile - start));
    if (i < n) out[i] = 2.0f * data[row * 32 + part * 4 + column % 4];
}}
"""
)
"""A swizzled box of two axes of a scratch buffer, in a launch that overlaps with the one that fills it."""

OVERLAPPED = Kernel(
    r"""/*
[[launch]]
kernel = "first"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "part", "n"]

[[launch]]
kernel = "second"
grid = ["ceil_div(n, 64)"]
block = [64]
programmatic = true
args = ["part", "out", "n"]

[[scratch]]
name = "part"
shape = ["n"]
*/
extern "C" __global__ void first(const float* x, float* part, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (i < n) part[i] = x[i];
}

extern "C" __global__ void second(const float* part, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (i < n) out[i] = 2.0f * part[i];
}
"""
)
"""A programmatic dependent launch."""

LARGE_SHARED = Kernel(
    r"""/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
shared = 232448
args = ["x", "out", "n"]
*/
extern "C" __global__ void twice(const float* x, float* out, int n) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * 64 + threadIdx.x;
    float* last = tile + 232448 / 4 - 64 + threadIdx.x;
    *last = i < n ? x[i] : 0.0f;
    if (i < n) out[i] = 2.0f * *last;
}
"""
)
"""All of the 227 KiB of shared memory that a block can have."""

DESCRIPTORS = Kernel(
    '''"""
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 256)"]
args = ["x", "out", "n"]
constexprs = { BLOCK = 256 }
"""
import triton
import triton.language as tl


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    target = tl.make_tensor_descriptor(out, [n], [1], [BLOCK])
    first = tl.program_id(0) * BLOCK
    target.store([first], 2.0 * source.load([first]))
''',
    Language.TRITON,
)
"""Tensor descriptors that Triton makes on the device, in scratch memory that its launcher allocates."""

SHARED_PROGRAMS = Kernel(
    '''"""
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 256)"]
args = ["x", "out", "n"]
constexprs = { BLOCK = 256 }
num_ctas = 2
maxnreg = 64
"""
import triton
import triton.language as tl


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2.0 * tl.load(x + i, mask=i < n), mask=i < n)
''',
    Language.TRITON,
)
"""Programs that two blocks of a cluster share, with limited registers."""

ALL = {
    "cluster": CLUSTER,
    "bulk": BULK,
    "tensor-maps": TENSOR_MAPS,
    "swizzled": SWIZZLED,
    "overlapped": OVERLAPPED,
    "large-shared": LARGE_SHARED,
    "descriptors": DESCRIPTORS,
    "shared-programs": SHARED_PROGRAMS,
}
