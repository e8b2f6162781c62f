/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 64)", "ceil_div(M, 64)"]
block = [128]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>

// Hopper's products of a warp group read tiles of 8 rows by 16 bytes, one behind the other, through descriptors.
__device__ int place(int row, int k) { return ((row / 8) * 2 + k / 8) * 64 + row % 8 * 8 + k % 8; }

__device__ unsigned long long described(const __nv_bfloat16* tiles) {
    // Next tile along k: 128 bytes; next eight rows: 256, both in units of 16 bytes.
    return (unsigned long long)((__cvta_generic_to_shared(tiles) & 0x3ffff) >> 4) | 8ull << 16 | 16ull << 32;
}

extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int M, int N, int K) {
    __shared__ __align__(128) __nv_bfloat16 left[64 * 16], right[64 * 16];
    int top = blockIdx.y * 64, first = blockIdx.x * 64;
    float d[32] = {};
    for (int start = 0; start < K; start += 16) {
        for (int i = threadIdx.x; i < 64 * 16; i += 128) {
            int row = top + i / 16, k = start + i % 16;
            left[place(i / 16, i % 16)] = row < M && k < K ? a[(size_t)row * K + k] : __nv_bfloat16(0.0f);
            int line = start + i / 64, col = first + i % 64;
            right[place(i % 64, i / 64)] = line < K && col < N ? b[(size_t)line * N + col] : __nv_bfloat16(0.0f);
        }
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, 1, 1, 1, 0, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
            : "l"(described(left)), "l"(described(right)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 32; ++i) {
        int row = top + threadIdx.x / 32 * 16 + lane / 4 + i % 4 / 2 * 8, col = first + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < M && col < N) c[(size_t)row * N + col] = __float2bfloat16(d[i]);
    }
}
