/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [256]
shared = "4 * cols"
args = ["x", "out", "rows", "cols"]
*/
#include <math_constants.h>

// A row comes by one bulk copy that a barrier in shared memory counts, and goes back by another.
__device__ float over_block(float value, bool largest) {
    __shared__ float warps[8];
    for (int s = 16; s; s >>= 1) {
        float other = __shfl_xor_sync(~0u, value, s);
        value = largest ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = warps[0];
    for (int i = 1; i < 8; ++i) value = largest ? fmaxf(value, warps[i]) : value + warps[i];
    return value;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    extern __shared__ __align__(128) float row[];
    __shared__ __align__(8) unsigned long long barrier;
    x += (size_t)blockIdx.x * cols;
    out += (size_t)blockIdx.x * cols;
    unsigned here = (unsigned)__cvta_generic_to_shared(row), arrived = (unsigned)__cvta_generic_to_shared(&barrier);
    bool bulk = cols % 4 == 0; // whole 16 bytes, and rows that begin with them
    if (bulk) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived) : "memory");
            asm volatile("fence.proxy.async;" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(4 * cols) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(here),
                "l"(__cvta_generic_to_global(x)), "r"(4 * cols), "r"(arrived)
                : "memory");
        }
        __syncthreads();
        asm volatile(
            "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
                arrived)
            : "memory");
    } else {
        for (int i = threadIdx.x; i < cols; i += 256) row[i] = x[i];
        __syncthreads();
    }
    float largest = -CUDART_INF_F, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 256) largest = fmaxf(largest, row[i]);
    largest = over_block(largest, true);
    for (int i = threadIdx.x; i < cols; i += 256) sum += expf(row[i] - largest);
    sum = over_block(sum, false);
    for (int i = threadIdx.x; i < cols; i += 256) row[i] = expf(row[i] - largest) / sum;
    if (bulk) {
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(out)),
                         "r"(here), "r"(4 * cols)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
        }
    } else {
        __syncthreads();
        for (int i = threadIdx.x; i < cols; i += 256) out[i] = row[i];
    }
}
