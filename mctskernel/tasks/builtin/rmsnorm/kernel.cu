/*
[[launch]]
kernel = "rmsnorm"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "weight", "out", "rows", "cols", "eps"]
*/
#include <cuda_bf16.h>

#define BLOCK 256

// One thread per row.
extern "C" __global__ void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out,
                                   int rows, int cols, float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float squares = 0.0f;
        for (int col = 0; col < cols; ++col) {
            float value = __bfloat162float(x[row * cols + col]);
            squares += value * value;
        }
        float scale = rsqrtf(squares / cols + eps);
        for (int col = 0; col < cols; ++col) {
            float value = __bfloat162float(x[row * cols + col]);
            out[row * cols + col] = __float2bfloat16(value * scale * __bfloat162float(weight[col]));
        }
    }
}
