/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, BN)", "ceil_div(M, BM)"]
block = ["THREADS"]
args = ["a", "b", "c", "M", "N", "K"]
*/
#define BM 128
#define BN 128
#define BK 16
#define TM 8
#define TN 8
#define VEC 4
#define PAD 4
#define THREADS (BM / TM * (BN / TN))

// Whether 16 bytes may be read or written there at once.
__device__ bool is_aligned(const void* address) {
    return reinterpret_cast<size_t>(address) % 16 == 0;
}

// A block computes BM x BN outputs, BK products at a time; a thread TM x TN of them.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    static_assert(BM % TM == 0 && BN % TN == 0, "threads must cover the block's outputs");
    static_assert(TM % VEC == 0 && TN % VEC == 0 && BM % 4 == 0 && BN % 4 == 0 && BK % 4 == 0, "vectors must cover tiles");
    __shared__ alignas(16) float a_tile[BK][BM + PAD];
    __shared__ alignas(16) float b_tile[BK][BN];
    const int tx = threadIdx.x % (BN / TN);
    const int ty = threadIdx.x / (BN / TN);
    const int row0 = blockIdx.y * BM;
    const int col0 = blockIdx.x * BN;
    float sum[TM][TN];
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            sum[i][j] = 0.0f;
        }
    }
    int k0 = 0;
    // Lines are as far apart as the first two, so that what is aligned for both is for all.
    if (row0 + BM <= M && is_aligned(&a[row0 * K + 0]) && is_aligned(&a[(row0 + 1) * K + 0]) && col0 + BN <= N && is_aligned(&b[0 * N + col0]) && is_aligned(&b[(0 + 1) * N + col0])) {
        for (; k0 + BK <= K; k0 += BK) {
            #pragma unroll
            for (int i = threadIdx.x; i < BK * BM / 4; i += THREADS) {
                const int m = i / (BK / 4);
                const int k = i % (BK / 4) * 4;
                alignas(16) float part[4];
                *reinterpret_cast<float4*>(part) = *reinterpret_cast<const float4*>(&a[(row0 + m) * K + (k0 + k)]);
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    a_tile[k + e][m] = part[e];
                }
            }
            #pragma unroll
            for (int i = threadIdx.x; i < BK * BN / 4; i += THREADS) {
                const int k = i / (BN / 4);
                const int n = i % (BN / 4) * 4;
                alignas(16) float part[4];
                *reinterpret_cast<float4*>(part) = *reinterpret_cast<const float4*>(&b[(k0 + k) * N + (col0 + n)]);
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    b_tile[k][n + e] = part[e];
                }
            }
            __syncthreads();
            #pragma unroll
            for (int k = 0; k < BK; ++k) {
                float a_part[TM], b_part[TN];
                #pragma unroll
                for (int i = 0; i < TM; ++i) {
                    a_part[i] = a_tile[k][(i / VEC * (BM / TM) + ty) * VEC + i % VEC];
                }
                #pragma unroll
                for (int j = 0; j < TN; ++j) {
                    b_part[j] = b_tile[k][(j / VEC * (BN / TN) + tx) * VEC + j % VEC];
                }
                #pragma unroll
                for (int i = 0; i < TM; ++i) {
                    #pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        sum[i][j] += a_part[i] * b_part[j];
                    }
                }
            }
            __syncthreads();
        }
    }
    for (; k0 < K; k0 += BK) {
        #pragma unroll
        for (int i = threadIdx.x; i < BK * BM; i += THREADS) {
            const int m = i / BK;
            const int k = i % BK;
            a_tile[k][m] = row0 + m < M && k0 + k < K ? a[(row0 + m) * K + (k0 + k)] : 0.0f;
        }
        #pragma unroll
        for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
            const int k = i / BN;
            const int n = i % BN;
            b_tile[k][n] = col0 + n < N && k0 + k < K ? b[(k0 + k) * N + (col0 + n)] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a_part[TM], b_part[TN];
            #pragma unroll
            for (int i = 0; i < TM; ++i) {
                a_part[i] = a_tile[k][(i / VEC * (BM / TM) + ty) * VEC + i % VEC];
            }
            #pragma unroll
            for (int j = 0; j < TN; ++j) {
                b_part[j] = b_tile[k][(j / VEC * (BN / TN) + tx) * VEC + j % VEC];
            }
            #pragma unroll
            for (int i = 0; i < TM; ++i) {
                #pragma unroll
                for (int j = 0; j < TN; ++j) {
                    sum[i][j] += a_part[i] * b_part[j];
                }
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        #pragma unroll
        for (int q = 0; q < TN / VEC; ++q) {
            #pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const int row = row0 + (i / VEC * (BM / TM) + ty) * VEC + i % VEC;
                const int col = col0 + (q * (BN / TN) + tx) * VEC + j;
                if (row < M && col < N) {
                    c[row * N + col] = sum[i][q * VEC + j];
                }
            }
        }
    }
}
