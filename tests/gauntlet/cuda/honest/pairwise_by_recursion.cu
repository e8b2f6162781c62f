/*
[[launch]]
kernel = "cross_entropy"
grid = ["rows"]
block = [64]
args = ["logits", "targets", "loss", "cols"]
*/
#include <cuda_bf16.h>

// Sums in pairs, by a function that calls itself: the calls keep their state on the stack of each thread.
__device__ __noinline__ float pairwise(const __nv_bfloat16* from, float largest, int first, int end, int step) {
    int count = (end - first + step - 1) / step;
    if (count <= 8) {
        float sum = 0.0f;
        for (int i = first; i < end; i += step) sum += expf(__bfloat162float(from[i]) - largest);
        return sum;
    }
    int middle = first + count / 2 * step;
    return pairwise(from, largest, first, middle, step) + pairwise(from, largest, middle, end, step);
}

extern "C" __global__ void cross_entropy(const __nv_bfloat16* logits, const long long* targets, float* loss, int cols) {
    __shared__ float both[64];
    const __nv_bfloat16* from = logits + (size_t)blockIdx.x * cols;
    int t = threadIdx.x;
    float largest = __bfloat162float(from[0]);
    for (int i = t; i < cols; i += 64) largest = fmaxf(largest, __bfloat162float(from[i]));
    both[t] = largest;
    __syncthreads();
    for (int half = 32; half; half >>= 1) {
        if (t < half) both[t] = fmaxf(both[t], both[t + half]);
        __syncthreads();
    }
    largest = both[0];
    __syncthreads();
    both[t] = t < cols ? pairwise(from, largest, t, cols, 64) : 0.0f;
    __syncthreads();
    for (int half = 32; half; half >>= 1) {
        if (t < half) both[t] += both[t + half];
        __syncthreads();
    }
    if (t == 0) loss[blockIdx.x] = logf(both[0]) + (largest - __bfloat162float(from[(int)targets[blockIdx.x]]));
}
