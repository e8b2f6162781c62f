/*
[[launch]]
kernel = "cross_entropy"
grid = ["rows"]
block = [160]
args = ["logits", "targets", "loss", "rows", "cols"]
*/
#include <cuda_bf16.h>
#include <cfloat>
#include <climits>

// Five warps; powers of two, logarithms, packed halves and 32-bit reductions by inline PTX, and maxima as ordered integers.
__device__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ int ordered(float x) {
    int bits = __float_as_int(x);
    return bits ^ (bits >> 31 & INT_MAX);
}

__device__ int largest_of_warp(int x) {
    int y;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

extern "C" __global__ void cross_entropy(const __nv_bfloat16* logits, const long long* targets, float* loss, int rows,
                                         int cols) {
    __shared__ int highest[5];
    __shared__ float sums[5];
    const __nv_bfloat16* row = logits + (size_t)blockIdx.x * cols;
    int warp = threadIdx.x >> 5, best = INT_MIN;
    for (int i = threadIdx.x; i < cols; i += 160) best = max(best, ordered(__bfloat162float(row[i])));
    best = largest_of_warp(best);
    if ((threadIdx.x & 31) == 0) highest[warp] = best;
    __syncthreads();
    for (int other : highest) best = max(best, other);
    float largest = __int_as_float(ordered(__int_as_float(best)));
    const float scale = 1.4426950408889634f;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 160) sum += power((__bfloat162float(row[i]) - largest) * scale);
#pragma unroll
    for (int s = 16; s; s >>= 1) {
        float other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(sum), "r"(s));
        sum += other;
    }
    if ((threadIdx.x & 31) == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    sum = 0.0f;
    for (float other : sums) sum += other;
    float logarithm;
    asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(sum));
    loss[blockIdx.x] = fmaf(logarithm, 0.6931471805599453f, largest - __bfloat162float(row[targets[blockIdx.x]]));
}
