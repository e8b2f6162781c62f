/*
[[launch]]
kernel = "filters_to_winograd"
grid = ["ceil_div(filters * channels, 64)"]
block = [64]
args = ["weight", "turned", "filters * channels"]

[[launch]]
kernel = "conv3x3"
grid = ["ceil_div(ceil_div(width, 2), 16)", "ceil_div(ceil_div(height, 2), 8)", "images * filters"]
block = [16, 8]
args = ["x", "turned", "out", "channels", "filters", "height", "width"]

[[scratch]]
name = "turned"
dtype = "float32"
shape = ["filters * channels", 16]
*/
#include <cuda_bf16.h>

// Winograd's F(2 x 2, 3 x 3): sixteen multiplications for four outputs in place of thirty-six.
extern "C" __global__ void filters_to_winograd(const __nv_bfloat16* weight, float* turned, int count) {
    int f = blockIdx.x * 64 + threadIdx.x;
    if (f >= count) return;
    float rows[4][3];
    for (int j = 0; j < 3; ++j) {
        float g[3];
        for (int i = 0; i < 3; ++i) g[i] = __bfloat162float(weight[f * 9 + i * 3 + j]);
        rows[0][j] = g[0], rows[3][j] = g[2];
        rows[1][j] = 0.5f * (g[0] + g[1] + g[2]), rows[2][j] = 0.5f * (g[0] - g[1] + g[2]);
    }
    for (int i = 0; i < 4; ++i) {
        float* to = turned + f * 16 + i * 4;
        const float* g = rows[i];
        to[0] = g[0], to[1] = 0.5f * (g[0] + g[1] + g[2]), to[2] = 0.5f * (g[0] - g[1] + g[2]), to[3] = g[2];
    }
}

extern "C" __global__ void conv3x3(const __nv_bfloat16* x, const float* turned, __nv_bfloat16* out, int channels,
                                   int filters, int height, int width) {
    int col = (blockIdx.x * 16 + threadIdx.x) * 2, row = (blockIdx.y * 8 + threadIdx.y) * 2;
    if (col >= width || row >= height) return;
    int image = blockIdx.z / filters, filter = blockIdx.z % filters;
    float sum[16] = {};
    for (int channel = 0; channel < channels; ++channel) {
        const __nv_bfloat16* from = x + ((size_t)image * channels + channel) * height * width;
        float d[4][4], e[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            int y = row + i / 4 - 1, z = col + i % 4 - 1;
            bool inside = y >= 0 && y < height && z >= 0 && z < width;
            d[i / 4][i % 4] = inside ? __bfloat162float(from[y * width + z]) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            e[0][j] = d[0][j] - d[2][j], e[1][j] = d[1][j] + d[2][j];
            e[2][j] = d[2][j] - d[1][j], e[3][j] = d[1][j] - d[3][j];
        }
        const float* u = turned + ((size_t)filter * channels + channel) * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum[i * 4] += u[i * 4] * (e[i][0] - e[i][2]), sum[i * 4 + 1] += u[i * 4 + 1] * (e[i][1] + e[i][2]);
            sum[i * 4 + 2] += u[i * 4 + 2] * (e[i][2] - e[i][1]), sum[i * 4 + 3] += u[i * 4 + 3] * (e[i][1] - e[i][3]);
        }
    }
    float half[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        half[0][j] = sum[j] + sum[4 + j] + sum[8 + j];
        half[1][j] = sum[4 + j] - sum[8 + j] - sum[12 + j];
    }
    __nv_bfloat16* to = out + (((size_t)image * filters + filter) * height + row) * width + col;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (row + i >= height) break;
        to[i * width] = __float2bfloat16(half[i][0] + half[i][1] + half[i][2]);
        if (col + 1 < width) to[i * width + 1] = __float2bfloat16(half[i][1] - half[i][2] - half[i][3]);
    }
}
