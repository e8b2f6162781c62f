/*
[[launch]]
kernel = "bias_gelu"
grid = ["ceil_div(cols, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "bias", "out", "rows", "cols"]
*/
#include <cuda_bf16.h>

#define BLOCK_X 32
#define BLOCK_Y 8

// One thread per element.
extern "C" __global__ void bias_gelu(const __nv_bfloat16* x, const __nv_bfloat16* bias, __nv_bfloat16* out,
                                     int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) {
        float value = __bfloat162float(x[row * cols + col]) + __bfloat162float(bias[col]);
        float inner = 0.7978845608f * (value + 0.044715f * value * value * value);
        out[row * cols + col] = __float2bfloat16(0.5f * value * (1.0f + tanhf(inner)));
    }
}
