/*
[[launch]]
kernel = "int4_matmul"
grid = ["N", "ceil_div(M, 4)"]
block = [32, 4]
args = ["x", "packed", "scales", "out", "M", "N", "K", "group"]
*/
#include <cuda_bf16.h>

__constant__ float CODES[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// A warp for each output, codes through a table in constant memory.
extern "C" __global__ void int4_matmul(const __nv_bfloat16* x, const unsigned char* packed, const __nv_bfloat16* scales,
                                       __nv_bfloat16* out, int M, int N, int K, int group) {
    int row = blockIdx.y * 4 + threadIdx.y, col = blockIdx.x;
    if (row >= M) return;
    float sum = 0.0f;
    for (int pair = threadIdx.x; pair < K / 2; pair += 32) {
        unsigned codes = packed[(size_t)col * (K / 2) + pair];
        for (int e = 0; e < 2; ++e) {
            int k = 2 * pair + e;
            float scale = __bfloat162float(scales[col * (K / group) + k / group]);
            sum += __bfloat162float(x[(size_t)row * K + k]) * (CODES[codes >> (4 * e) & 15] * scale);
        }
    }
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) out[(size_t)row * N + col] = __float2bfloat16(sum);
}
