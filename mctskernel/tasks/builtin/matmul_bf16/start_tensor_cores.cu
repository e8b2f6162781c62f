/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, BN)", "ceil_div(M, BM)"]
block = ["THREADS"]
args = ["a", "b", "c", "M", "N", "K"]
shared = "2 * STAGES * (BM * (BK + 8) + BK * (BN + 8))"
*/
#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>

#define BM 128
#define BN 128
#define BK 32
#define WM 64
#define WN 64
#define STAGES 4
#define THREADS (BM / WM * (BN / WN) * 32)

// Whether 16 bytes may be read or written there at once.
__device__ bool is_aligned(const void* address) {
    return reinterpret_cast<size_t>(address) % 16 == 0;
}

namespace fragments {

// Four 8 x 8 matrices of 16-bit floats from shared memory; each lane names a row of eight.
__device__ void load_matrices(unsigned (&parts)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

// The same, each matrix transposed.
__device__ void load_transposed(unsigned (&parts)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

// Adds the product of a 16 x 16 and a 16 x 8 matrix on tensor cores.
__device__ void multiply(float (&sums)[4], const unsigned (&left)[4], unsigned right0, unsigned right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

} // namespace fragments

// Tensor cores compute BM x BN outputs a block, WM x WN a warp, while tiles of STAGES - 1 further stages are in flight.
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int M, int N,
                                  int K) {
    static_assert(WM % 16 == 0 && WN % 16 == 0, "warps compute whole fragments");
    static_assert(BK % 16 == 0 && STAGES >= 2, "fragments take 16 products at a time");
    static_assert(BM % WM == 0 && BN % WN == 0, "warps must cover the outputs");
    extern __shared__ uint4 tiles[]; // aligned to 16 bytes
    auto* const a_tile = reinterpret_cast<__nv_bfloat16 (*)[BM][(BK + 8)]>(tiles);
    auto* const b_tile = reinterpret_cast<__nv_bfloat16 (*)[BK][(BN + 8)]>(a_tile + STAGES);
    const int row0 = blockIdx.y * BM;
    const int col0 = blockIdx.x * BN;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int warp_row = warp / (BN / WN) * WM;
    const int warp_col = warp % (BN / WN) * WN;
    float sums[WM / 16][WN / 8][4];
    #pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
        #pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                sums[i][j][e] = 0.0f;
            }
        }
    }
    auto copy = [&](int k0, int stage) {
        if (k0 < K) {
            // Lines are as far apart as the first two, so that what is aligned for both is for all.
            if (row0 + BM <= M && k0 + BK <= K && is_aligned(&a[row0 * K + k0]) && is_aligned(&a[(row0 + 1) * K + k0])) {
                #pragma unroll
                for (int at = threadIdx.x; at < BM * (BK / 8); at += THREADS) {
                    const int line = at / (BK / 8);
                    const int part = at % (BK / 8) * 8;
                    __pipeline_memcpy_async(&a_tile[stage][line][part], &a[(row0 + line) * K + (k0 + part)], 16);
                }
            } else {
                #pragma unroll
                for (int at = threadIdx.x; at < BM * (BK / 8); at += THREADS) {
                    const int line = at / (BK / 8);
                    const int part = at % (BK / 8) * 8;
                    if (row0 + line < M && k0 + part + 8 <= K && is_aligned(&a[(row0 + line) * K + (k0 + part)])) {
                        __pipeline_memcpy_async(&a_tile[stage][line][part], &a[(row0 + line) * K + (k0 + part)], 16);
                    } else {
                        for (int e = 0; e < 8; ++e) {
                            const bool inside = row0 + line < M && k0 + part + e < K;
                            a_tile[stage][line][part + e] = inside ? a[(row0 + line) * K + (k0 + part + e)] : static_cast<__nv_bfloat16>(0.0f);
                        }
                    }
                }
            }
            // Lines are as far apart as the first two, so that what is aligned for both is for all.
            if (k0 + BK <= K && col0 + BN <= N && is_aligned(&b[k0 * N + col0]) && is_aligned(&b[(k0 + 1) * N + col0])) {
                #pragma unroll
                for (int at = threadIdx.x; at < BK * (BN / 8); at += THREADS) {
                    const int line = at / (BN / 8);
                    const int part = at % (BN / 8) * 8;
                    __pipeline_memcpy_async(&b_tile[stage][line][part], &b[(k0 + line) * N + (col0 + part)], 16);
                }
            } else {
                #pragma unroll
                for (int at = threadIdx.x; at < BK * (BN / 8); at += THREADS) {
                    const int line = at / (BN / 8);
                    const int part = at % (BN / 8) * 8;
                    if (k0 + line < K && col0 + part + 8 <= N && is_aligned(&b[(k0 + line) * N + (col0 + part)])) {
                        __pipeline_memcpy_async(&b_tile[stage][line][part], &b[(k0 + line) * N + (col0 + part)], 16);
                    } else {
                        for (int e = 0; e < 8; ++e) {
                            const bool inside = k0 + line < K && col0 + part + e < N;
                            b_tile[stage][line][part + e] = inside ? b[(k0 + line) * N + (col0 + part + e)] : static_cast<__nv_bfloat16>(0.0f);
                        }
                    }
                }
            }
        }
        __pipeline_commit();
    };
    #pragma unroll
    for (int step = 0; step < (STAGES - 1); ++step) {
        copy(step * BK, step);
    }
    for (int k0 = 0; k0 < K; k0 += BK) {
        const int step = k0 / BK;
        __pipeline_wait_prior(STAGES - 2);
        // All warps are done with the step before, whose tiles are the next to be overwritten.
        __syncthreads();
        copy(k0 + (STAGES - 1) * BK, (step + (STAGES - 1)) % STAGES);
        const int stage = step % STAGES;
        #pragma unroll
        for (int e = 0; e < BK; e += 16) {
            unsigned left[WM / 16][4], right[WN / 16][4];
            #pragma unroll
            for (int i = 0; i < WM / 16; ++i) {
                fragments::load_matrices(left[i], &a_tile[stage][warp_row + i * 16 + lane % 16][e + lane / 16 * 8]);
            }
            #pragma unroll
            for (int j = 0; j < WN / 16; ++j) {
                fragments::load_transposed(right[j], &b_tile[stage][e + lane % 16][warp_col + j * 16 + lane / 16 * 8]);
            }
            #pragma unroll
            for (int i = 0; i < WM / 16; ++i) {
                #pragma unroll
                for (int j = 0; j < WN / 16; ++j) {
                    fragments::multiply(sums[i][2 * j], left[i], right[j][0], right[j][1]);
                    fragments::multiply(sums[i][2 * j + 1], left[i], right[j][2], right[j][3]);
                }
            }
        }
    }
    __pipeline_wait_prior(0);
    #pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
        #pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row0 + warp_row + i * 16 + e / 2 * 8 + lane / 4;
                const int col = col0 + warp_col + j * 8 + lane % 4 * 2 + e % 2;
                if (row < M && col < N) {
                    c[row * N + col] = __float2bfloat16(sums[i][j][e]);
                }
            }
        }
    }
}
