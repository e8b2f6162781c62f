/*
[[launch]]
kernel = "cross_entropy"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["logits", "targets", "loss", "rows", "cols"]
*/
#include <cuda_bf16.h>

#define BLOCK 256

// One thread per row.
extern "C" __global__ void cross_entropy(const __nv_bfloat16* logits, const long long* targets, float* loss,
                                         int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float largest = __bfloat162float(logits[row * cols]);
        for (int col = 1; col < cols; ++col) {
            largest = fmaxf(largest, __bfloat162float(logits[row * cols + col]));
        }
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += expf(__bfloat162float(logits[row * cols + col]) - largest);
        }
        float chosen = __bfloat162float(logits[row * cols + (int)targets[row]]);
        loss[row] = logf(sum) + (largest - chosen);
    }
}
