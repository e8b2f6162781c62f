/*
[[launch]]
kernel = "softmax"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "out", "rows", "cols"]
*/
#include <math_constants.h>

// One warp per row. The largest value and the sum are found in one pass, the sum scaled whenever the largest grows.
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    float* to = out + (size_t)row * cols;
    float largest = -CUDART_INF_F, sum = 0.0f;
    for (int i = lane; i < cols; i += 32) {
        float value = from[i], higher = fmaxf(largest, value);
        sum = sum * expf(largest - higher) + expf(value - higher);
        largest = higher;
    }
    for (int s = 16; s; s >>= 1) {
        float other = __shfl_xor_sync(~0u, largest, s), others = __shfl_xor_sync(~0u, sum, s);
        float higher = fmaxf(largest, other);
        // Two lanes without a column each have nothing to rescale.
        sum = higher > -CUDART_INF_F ? sum * expf(largest - higher) + others * expf(other - higher) : sum + others;
        largest = higher;
    }
    for (int i = lane; i < cols; i += 32) to[i] = expf(from[i] - largest) / sum;
}
