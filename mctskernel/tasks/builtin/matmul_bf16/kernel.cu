/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, BLOCK_X)", "ceil_div(M, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>

#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per output. Row-major: a is M x K, b is K x N, c is M x N.
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int M, int N,
                                  int K) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && col < N) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) {
            sum += __bfloat162float(a[row * K + k]) * __bfloat162float(b[k * N + col]);
        }
        c[row * N + col] = __float2bfloat16(sum);
    }
}
