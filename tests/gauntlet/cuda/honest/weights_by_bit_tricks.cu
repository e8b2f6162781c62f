/*
[[launch]]
kernel = "clear"
grid = ["ceil_div(M * N, 256)"]
block = [256]
args = ["sums", "M * N"]

[[launch]]
kernel = "multiply"
grid = ["ceil_div(N, 32)", "ceil_div(K, 64)", "ceil_div(M, 16)"]
block = [32, 4]
args = ["x", "packed", "scales", "sums", "M", "N", "K", "group"]

[[launch]]
kernel = "finish"
grid = ["ceil_div(M * N, 256)"]
block = [256]
args = ["sums", "out", "M * N"]

[[scratch]]
name = "sums"
dtype = "float32"
shape = ["M", "N"]
*/
#include <cuda_bf16.h>

// Codes become bfloat16 by an or with the bits of 128 and are scaled in bfloat16; K is split over blocks that add floats atomically.
extern "C" __global__ void clear(float* sums, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) sums[i] = 0.0f;
}

extern "C" __global__ void multiply(const __nv_bfloat16* x, const unsigned char* packed, const __nv_bfloat16* scales,
                                    float* sums, int M, int N, int K, int group) {
    __shared__ float left[16][64];
    int col = blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * 64, top = blockIdx.z * 16;
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 16 * 64; i += 128) {
        int row = top + i / 64, k = first + i % 64;
        left[i / 64][i % 64] = row < M && k < K ? __bfloat162float(x[(size_t)row * K + k]) : 0.0f;
    }
    __syncthreads();
    if (col >= N) return;
    float sum[4] = {};
    for (int k = first; k < min(K, first + 64); k += 2) {
        unsigned pair = packed[((size_t)col * K + k) / 2];
        unsigned bits = (pair & 15) | (pair & 0xf0) << 12 | 0x43004300u;
        __nv_bfloat162 codes = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&bits), __float2bfloat162_rn(136.0f));
        __nv_bfloat162 by(scales[col * (K / group) + k / group], scales[col * (K / group) + (k + 1) / group]);
        float2 weight = __bfloat1622float2(__hmul2(codes, by));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const float* of = &left[threadIdx.y * 4 + m][k - first];
            sum[m] += of[0] * weight.x + of[1] * weight.y;
        }
    }
    for (int m = 0; m < 4; ++m) {
        int row = top + threadIdx.y * 4 + m;
        if (row < M) atomicAdd(&sums[(size_t)row * N + col], sum[m]);
    }
}

extern "C" __global__ void finish(const float* sums, __nv_bfloat16* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16_rn(sums[i]);
}
