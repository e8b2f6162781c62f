/*
[[launch]]
kernel = "cross_entropy"
grid = ["rows"]
block = [128]
args = ["logits", "targets", "loss", "cols"]
*/
#include <cuda_bf16.h>
#include <math_constants.h>

union Packed {
    unsigned long long word;
    float2 pair;
};

// One pass in powers of two: largest and sum travel through the shuffles as one word of 64 bits.
__device__ Packed merge(Packed a, Packed b) {
    Packed most;
    most.pair.x = fmaxf(a.pair.x, b.pair.x);
    if (most.pair.x == -CUDART_INF_F) {
        most.pair.y = a.pair.y + b.pair.y;
    } else {
        most.pair.y = a.pair.y * exp2f(a.pair.x - most.pair.x) + b.pair.y * exp2f(b.pair.x - most.pair.x);
    }
    return most;
}

extern "C" __global__ void cross_entropy(const __nv_bfloat16* logits, const long long* targets, float* loss, int cols) {
    __shared__ unsigned long long warps[4];
    const float log2e = 1.44269504089f;
    const __nv_bfloat16* from = logits + (size_t)blockIdx.x * cols;
    Packed mine;
    mine.pair = make_float2(-CUDART_INF_F, 0.0f);
    for (int i = threadIdx.x; i < cols; i += 128) {
        float value = __bfloat162float(from[i]), higher = fmaxf(mine.pair.x, value);
        mine.pair.y = mine.pair.y * exp2f((mine.pair.x - higher) * log2e) + exp2f((value - higher) * log2e);
        mine.pair.x = higher;
    }
    mine.pair.x *= log2e;
    for (int s = 16; s; s /= 2) {
        Packed other;
        other.word = __shfl_xor_sync(0xffffffffu, mine.word, s);
        mine = merge(mine, other);
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine.word;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 4; ++w) {
            Packed other;
            other.word = warps[w];
            mine = merge(mine, other);
        }
        // Rounded as the largest was, so that the difference is 0 where the target is the largest.
        float chosen = __fmul_rn(__bfloat162float(from[targets[blockIdx.x]]), log2e);
        loss[blockIdx.x] = (log2f(mine.pair.y) + (mine.pair.x - chosen)) * 0.69314718056f;
    }
}
