/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, TILE_N)", "ceil_div(M, TILE_M)"]
block = ["32 * WARPS_M * WARPS_N"]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>
#include <mma.h>

#define WARPS_M 2
#define WARPS_N 2
#define FRAGMENTS_M 2
#define FRAGMENTS_N 2
#define DEPTH 32
#define PAD 8
#define AHEAD 1

#define TILE_M (16 * WARPS_M * FRAGMENTS_M)
#define TILE_N (16 * WARPS_N * FRAGMENTS_N)
#define THREADS (32 * WARPS_M * WARPS_N)
#define VECTORS_A (TILE_M * DEPTH / 8)
#define VECTORS_B (TILE_N * DEPTH / 8)
#define EACH_A ((VECTORS_A + THREADS - 1) / THREADS)
#define EACH_B ((VECTORS_B + THREADS - 1) / THREADS)

// Eight elements of a row of a matrix, zeros beyond its edges.
__device__ uint4 eight(const __nv_bfloat16* matrix, int row, int col, int rows, int cols) {
    if (row < rows && col + 8 <= cols && cols % 8 == 0) {
        return *reinterpret_cast<const uint4*>(matrix + (size_t)row * cols + col);
    }
    __align__(16) __nv_bfloat16 part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        bool inside = row < rows && col + i < cols;
        part[i] = inside ? matrix[(size_t)row * cols + col + i] : __float2bfloat16(0.0f);
    }
    return *reinterpret_cast<uint4*>(part);
}

// A tile of the product per block, staged through shared memory; AHEAD fetches the next tiles into registers meanwhile.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ c,
       int M, int N, int K) {
    using namespace nvcuda;
    __shared__ __align__(128) __nv_bfloat16 left[TILE_M][DEPTH + PAD];
    __shared__ __align__(128) __nv_bfloat16 right[DEPTH][TILE_N + PAD];
    __shared__ __align__(128) float results[WARPS_M * WARPS_N][16][16];
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    int warp_row = warp / WARPS_N * FRAGMENTS_M * 16, warp_col = warp % WARPS_N * FRAGMENTS_N * 16;
    int first_row = blockIdx.y * TILE_M, first_col = blockIdx.x * TILE_N;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[FRAGMENTS_M][FRAGMENTS_N];
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            wmma::fill_fragment(sums[m][n], 0.0f);
        }
    }
    uint4 next_a[EACH_A], next_b[EACH_B];
    auto fetch = [&](int k) {
#pragma unroll
        for (int i = 0; i < EACH_A; ++i) {
            int at = thread + i * THREADS;
            if (at < VECTORS_A) {
                next_a[i] = eight(a, first_row + at / (DEPTH / 8), k + at % (DEPTH / 8) * 8, M, K);
            }
        }
#pragma unroll
        for (int i = 0; i < EACH_B; ++i) {
            int at = thread + i * THREADS;
            if (at < VECTORS_B) {
                next_b[i] = eight(b, k + at / (TILE_N / 8), first_col + at % (TILE_N / 8) * 8, K, N);
            }
        }
    };
    if (AHEAD) {
        fetch(0);
    }
    for (int k = 0; k < K; k += DEPTH) {
        if (!AHEAD) {
            fetch(k);
        }
#pragma unroll
        for (int i = 0; i < EACH_A; ++i) {
            int at = thread + i * THREADS;
            if (at < VECTORS_A) {
                *reinterpret_cast<uint4*>(&left[at / (DEPTH / 8)][at % (DEPTH / 8) * 8]) = next_a[i];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH_B; ++i) {
            int at = thread + i * THREADS;
            if (at < VECTORS_B) {
                *reinterpret_cast<uint4*>(&right[at / (TILE_N / 8)][at % (TILE_N / 8) * 8]) = next_b[i];
            }
        }
        __syncthreads();
        if (AHEAD && k + DEPTH < K) {
            fetch(k + DEPTH);
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> rows[FRAGMENTS_M];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> cols[FRAGMENTS_N];
#pragma unroll
            for (int m = 0; m < FRAGMENTS_M; ++m) {
                wmma::load_matrix_sync(rows[m], &left[warp_row + 16 * m][i], DEPTH + PAD);
            }
#pragma unroll
            for (int n = 0; n < FRAGMENTS_N; ++n) {
                wmma::load_matrix_sync(cols[n], &right[i][warp_col + 16 * n], TILE_N + PAD);
            }
#pragma unroll
            for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
                for (int n = 0; n < FRAGMENTS_N; ++n) {
                    wmma::mma_sync(sums[m][n], rows[m], cols[n], sums[m][n]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            wmma::store_matrix_sync(&results[warp][0][0], sums[m][n], 16, wmma::mem_row_major);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                int at = lane + 32 * i;
                int row = first_row + warp_row + 16 * m + at / 16, col = first_col + warp_col + 16 * n + at % 16;
                if (row < M && col < N) {
                    c[(size_t)row * N + col] = __float2bfloat16(results[warp][at / 16][at % 16]);
                }
            }
            __syncwarp();
        }
    }
}
