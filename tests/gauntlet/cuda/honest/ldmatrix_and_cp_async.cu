/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 32)", "ceil_div(M, 32)"]
block = [128]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

typedef __nv_bfloat16 bf16;

// Two stages of cp.async where rows are aligned, plain copies elsewhere; ldmatrix and mma.sync by inline PTX.
__device__ void fetch(bf16 (*to)[40], const bf16* from, int rows, int cols, int top, int first, int high, int wide) {
    for (int i = threadIdx.x * 8; i < high * wide; i += 128 * 8) {
        int r = i / wide, k = i % wide, row = top + r, col = first + k;
        if (cols % 8 == 0 && row < rows && col < cols) {
            __pipeline_memcpy_async(&to[r][k], from + (size_t)row * cols + col, 16);
        } else {
            for (int e = 0; e < 8; ++e)
                to[r][k + e] = row < rows && col + e < cols ? from[(size_t)row * cols + col + e] : __float2bfloat16(0.0f);
        }
    }
}

extern "C" __global__ void matmul(const bf16* a, const bf16* b, bf16* c, int M, int N, int K) {
    __shared__ __align__(16) bf16 left[2][32][40], right[2][32][40];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / 2 * 16, across = warp % 2 * 16;
    int top = blockIdx.y * 32, first = blockIdx.x * 32, steps = (K + 31) / 32;
    float sum[2][4] = {};
    fetch(left[0], a, M, K, top, 0, 32, 32);
    fetch(right[0], b, K, N, 0, first, 32, 32);
    __pipeline_commit();
    for (int step = 0; step < steps; ++step) {
        int now = step & 1;
        if (step + 1 < steps) {
            fetch(left[now ^ 1], a, M, K, top, (step + 1) * 32, 32, 32);
            fetch(right[now ^ 1], b, K, N, (step + 1) * 32, first, 32, 32);
        }
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        for (int k = 0; k < 32; k += 16) {
            unsigned l[4], r[4];
            unsigned at = __cvta_generic_to_shared(&left[now][down + lane % 16][k + lane / 16 * 8]);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(l[0]), "=r"(l[1]), "=r"(l[2]), "=r"(l[3]) : "r"(at));
            at = __cvta_generic_to_shared(&right[now][k + lane % 16][across + lane / 16 * 8]);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
            for (int n = 0; n < 2; ++n)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                             "{%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
                             : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[2 * n]), "r"(r[2 * n + 1]));
        }
        __syncthreads();
    }
    for (int n = 0; n < 2; ++n)
        for (int e = 0; e < 4; ++e) {
            int row = top + down + lane / 4 + e / 2 * 8, col = first + across + n * 8 + lane % 4 * 2 + e % 2;
            if (row < M && col < N) c[(size_t)row * N + col] = __float2bfloat16(sum[n][e]);
        }
}
