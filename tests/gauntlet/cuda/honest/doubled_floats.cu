/*
[[launch]]
kernel = "layernorm"
grid = ["rows"]
block = [128]
args = ["x", "weight", "bias", "out", "rows", "cols", "eps"]
*/
#include <cuda_bf16.h>
#include <utility>
#include <algorithm>

// Sums of pairs of floats, the second holding what the first has rounded away, by Knuth's and Dekker's sums.
struct Doubled {
    float high = 0.0f, low = 0.0f;
    __device__ Doubled& operator+=(const Doubled& other) {
        float sum = __fadd_rn(high, other.high), moved = __fsub_rn(sum, high);
        float error = __fadd_rn(__fsub_rn(high, __fsub_rn(sum, moved)), __fsub_rn(other.high, moved));
        error = __fadd_rn(error, __fadd_rn(low, other.low));
        high = __fadd_rn(sum, error);
        low = __fsub_rn(error, __fsub_rn(high, sum));
        return *this;
    }
};

__device__ Doubled squared(float x) {
    Doubled found;
    found.high = __fmul_rn(x, x);
    found.low = __fmaf_rn(x, x, -found.high);
    return found;
}

__device__ Doubled total(Doubled mine, Doubled (&parts)[4]) {
    for (int s = 1; s < 32; s *= 2) {
        Doubled other;
        other.high = __shfl_xor_sync(~0u, mine.high, s);
        other.low = __shfl_xor_sync(~0u, mine.low, s);
        mine += other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    Doubled all = parts[0];
    for (int i = 1; i < 4; ++i) all += parts[i];
    return all;
}

extern "C" __global__ void layernorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                                     __nv_bfloat16* out, int rows, int cols, float eps) {
    __shared__ Doubled parts[4];
    const __nv_bfloat16* from = x + (size_t)blockIdx.x * cols;
    Doubled sum;
    for (int i = threadIdx.x; i < cols; i += 128) {
        Doubled one;
        one.high = __bfloat162float(from[i]);
        sum += one;
    }
    float mean = total(sum, parts).high / cols;
    Doubled squares;
    for (int i = threadIdx.x; i < cols; i += 128) squares += squared(__bfloat162float(from[i]) - mean);
    float scale = rsqrtf(std::max(total(squares, parts).high / cols, 0.0f) + eps);
    for (int i = threadIdx.x; i < cols; i += 128) {
        float value = (__bfloat162float(from[i]) - mean) * scale;
        out[(size_t)blockIdx.x * cols + i] = __float2bfloat16(fmaf(value, __bfloat162float(weight[i]), __bfloat162float(bias[i])));
    }
}
