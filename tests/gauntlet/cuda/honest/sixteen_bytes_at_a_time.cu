/*
[[launch]]
kernel = "layernorm"
grid = ["rows"]
block = [128]
args = ["x", "weight", "bias", "out", "cols", "eps"]
*/
#include <cuda_bf16.h>

// Eight elements an access where the row is aligned; two passes over the row, the second of which reads the cache.
template <class F>
__device__ __forceinline__ void each(const __nv_bfloat16* from, int cols, F&& f) {
    bool whole = cols % 8 == 0;
    int step = whole ? 8 : 1;
    for (int i = threadIdx.x * step; i < cols; i += 128 * step) {
        if (whole) {
            uint4 word = *reinterpret_cast<const uint4*>(from + i);
            const __nv_bfloat16* eight = reinterpret_cast<const __nv_bfloat16*>(&word);
#pragma unroll
            for (int e = 0; e < 8; ++e) f(i + e, __bfloat162float(eight[e]));
        } else {
            f(i, __bfloat162float(from[i]));
        }
    }
}

__device__ float block_sum(float value, float* warps) {
    for (int s = 16; s; s >>= 1) value += __shfl_xor_sync(~0u, value, s);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    return warps[0] + warps[1] + warps[2] + warps[3];
}

extern "C" __global__ void layernorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                                     __nv_bfloat16* out, int cols, float eps) {
    __shared__ float warps[4];
    const __nv_bfloat16* from = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f, squares = 0.0f;
    each(from, cols, [&](int, float value) { sum += value; });
    float mean = block_sum(sum, warps) / cols;
    each(from, cols, [&](int, float value) { squares += (value - mean) * (value - mean); });
    float scale = rsqrtf(block_sum(squares, warps) / cols + eps);
    each(from, cols, [&](int i, float value) {
        out[(size_t)blockIdx.x * cols + i] =
            __float2bfloat16((value - mean) * scale * __bfloat162float(weight[i]) + __bfloat162float(bias[i]));
    });
}
