/*
[[launch]]
kernel = "layernorm"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "weight", "bias", "out", "rows", "cols", "eps"]
*/
#include <cuda_bf16.h>

// Welford's running mean and squared deviations in each lane, merged with Chan's formula: one pass over the row.
struct Moments {
    float count, mean, squares;
    __device__ void add(float value) {
        count += 1.0f;
        float off = value - mean;
        mean += off / count;
        squares += off * (value - mean);
    }
    __device__ void merge(const Moments& other) {
        float all = count + other.count;
        if (all == 0.0f) return;
        float off = other.mean - mean, share = other.count / all;
        mean += off * share;
        squares += other.squares + off * off * count * share;
        count = all;
    }
};

extern "C" __global__ void layernorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                                     __nv_bfloat16* out, int rows, int cols, float eps) {
    int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) return;
    const __nv_bfloat16* from = x + (size_t)row * cols;
    Moments moments = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < cols; i += 32) moments.add(__bfloat162float(from[i]));
    for (int s = 16; s; s >>= 1) {
        Moments other = {__shfl_down_sync(~0u, moments.count, s), __shfl_down_sync(~0u, moments.mean, s),
                         __shfl_down_sync(~0u, moments.squares, s)};
        moments.merge(other);
    }
    float mean = __shfl_sync(~0u, moments.mean, 0);
    float scale = rsqrtf(__shfl_sync(~0u, moments.squares, 0) / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 32)
        out[(size_t)row * cols + i] = __float2bfloat16(
            fmaf((__bfloat162float(from[i]) - mean) * scale, __bfloat162float(weight[i]), __bfloat162float(bias[i])));
}
