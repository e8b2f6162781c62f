/*
[[launch]]
kernel = "unfold"
grid = ["ceil_div(height * width, 128)", "channels", "images"]
block = [128]
args = ["x", "columns", "height", "width"]

[[launch]]
kernel = "multiply"
grid = ["ceil_div(height * width, 16)", "ceil_div(filters, 16)", "images"]
block = [16, 16]
args = ["weight", "columns", "out", "filters", "channels * 9", "height * width"]

[[scratch]]
name = "columns"
dtype = "bfloat16"
shape = ["images", "channels * 9", "height * width"]
*/
#include <cuda_bf16.h>

// The image's windows as columns of a matrix in a scratch buffer, then a product of matrices.
extern "C" __global__ void unfold(const __nv_bfloat16* x, __nv_bfloat16* columns, int height, int width) {
    int at = blockIdx.x * 128 + threadIdx.x;
    if (at >= height * width) return;
    size_t plane = blockIdx.z * gridDim.y + blockIdx.y;
    for (int i = 0; i < 9; ++i) {
        int row = at / width + i / 3 - 1, col = at % width + i % 3 - 1;
        bool inside = row >= 0 && row < height && col >= 0 && col < width;
        columns[(plane * 9 + i) * height * width + at] =
            inside ? x[(plane * height + row) * width + col] : __float2bfloat16(0.0f);
    }
}

extern "C" __global__ void multiply(const __nv_bfloat16* weight, const __nv_bfloat16* columns, __nv_bfloat16* out,
                                    int filters, int depth, int area) {
    __shared__ float left[16][17], right[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
    columns += (size_t)blockIdx.z * depth * area;
    float sum = 0.0f;
    for (int k = 0; k < depth; k += 16) {
        left[ty][tx] = row < filters && k + tx < depth ? __bfloat162float(weight[row * depth + k + tx]) : 0.0f;
        right[ty][tx] = k + ty < depth && col < area ? __bfloat162float(columns[(size_t)(k + ty) * area + col]) : 0.0f;
        __syncthreads();
        for (int e = 0; e < 16; ++e) sum = fmaf(left[ty][e], right[e][tx], sum);
        __syncthreads();
    }
    if (row < filters && col < area) out[((size_t)blockIdx.z * filters + row) * area + col] = __float2bfloat16(sum);
}
