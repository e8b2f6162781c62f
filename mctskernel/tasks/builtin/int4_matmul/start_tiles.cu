/*
[[launch]]
kernel = "int4_matmul"
grid = ["ceil_div(N, TILE)", "ceil_div(M, TILE)"]
block = ["TILE", "TILE"]
args = ["x", "packed", "scales", "out", "M", "N", "K", "group"]
*/
#include <cuda_bf16.h>

#define TILE 16

// One thread per output; a block's operands pass through shared memory in TILE x TILE tiles.
extern "C" __global__ void int4_matmul(const __nv_bfloat16* x, const unsigned char* packed,
                                       const __nv_bfloat16* scales, __nv_bfloat16* out, int M, int N, int K,
                                       int group) {
    __shared__ float x_tile[TILE][TILE];
    __shared__ float weights[TILE][TILE];
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty;
    const int col = blockIdx.x * TILE + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        x_tile[ty][tx] = row < M && k0 + tx < K ? __bfloat162float(x[row * K + (k0 + tx)]) : 0.0f;
        float weight = 0.0f;
        if (col < N && k0 + ty < K) {
            int at = col * K + k0 + ty;
            int pair = packed[at / 2];
            int code = (k0 + ty) % 2 == 0 ? pair & 15 : pair >> 4;
            weight = (code - 8) * __bfloat162float(scales[at / group]);
        }
        weights[ty][tx] = weight;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) {
            sum += x_tile[ty][k] * weights[k][tx];
        }
        __syncthreads();
    }
    if (row < M && col < N) {
        out[row * N + col] = __float2bfloat16(sum);
    }
}
