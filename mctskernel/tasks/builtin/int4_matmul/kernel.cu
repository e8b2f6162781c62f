/*
[[launch]]
kernel = "int4_matmul"
grid = ["ceil_div(N, BLOCK_X)", "ceil_div(M, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "packed", "scales", "out", "M", "N", "K", "group"]
*/
#include <cuda_bf16.h>

#define BLOCK_X 32
#define BLOCK_Y 8

// One thread per output. Row-major: x is M x K, packed N x K/2, scales N x K/group, out M x N.
extern "C" __global__ void int4_matmul(const __nv_bfloat16* x, const unsigned char* packed,
                                       const __nv_bfloat16* scales, __nv_bfloat16* out, int M, int N, int K,
                                       int group) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && col < N) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) {
            int pair = packed[(col * K + k) / 2];
            int code = k % 2 == 0 ? pair & 15 : pair >> 4;
            float weight = (code - 8) * __bfloat162float(scales[(col * K + k) / group]);
            sum += __bfloat162float(x[row * K + k]) * weight;
        }
        out[row * N + col] = __float2bfloat16(sum);
    }
}
