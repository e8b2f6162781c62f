/*
[[launch]]
kernel = "layernorm"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "weight", "bias", "out", "rows", "cols", "eps"]
*/
#include <cuda_bf16.h>

#define BLOCK 256

// One thread per row.
extern "C" __global__ void layernorm(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                                     const __nv_bfloat16* bias, __nv_bfloat16* out, int rows, int cols,
                                     float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += __bfloat162float(x[row * cols + col]);
        }
        float mean = sum / cols;
        float squares = 0.0f;
        for (int col = 0; col < cols; ++col) {
            float centred = __bfloat162float(x[row * cols + col]) - mean;
            squares += centred * centred;
        }
        float scale = rsqrtf(squares / cols + eps);
        for (int col = 0; col < cols; ++col) {
            float centred = __bfloat162float(x[row * cols + col]) - mean;
            out[row * cols + col] = __float2bfloat16(centred * scale * __bfloat162float(weight[col]) +
                                                     __bfloat162float(bias[col]));
        }
    }
}
