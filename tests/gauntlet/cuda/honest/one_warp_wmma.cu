/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)"]
block = [32]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

// A warp for each tile: fragments straight from global memory where a whole tile lies there, through shared memory elsewhere.
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int M, int N, int K) {
    __shared__ __align__(32) __nv_bfloat16 edge[2][256];
    __shared__ __align__(32) float result[256];
    int top = blockIdx.y * 16, first = blockIdx.x * 16, lane = threadIdx.x;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right;
    wmma::fill_fragment(sum, 0.0f);
    bool direct = K % 16 == 0 && N % 16 == 0 && top + 16 <= M;
    for (int k = 0; k < K; k += 16) {
        if (direct) {
            wmma::load_matrix_sync(left, a + (size_t)top * K + k, K);
            wmma::load_matrix_sync(right, b + (size_t)k * N + first, N);
        } else {
            for (int i = lane; i < 256; i += 32) {
                int r = i / 16, s = i % 16;
                edge[0][i] = top + r < M && k + s < K ? a[(size_t)(top + r) * K + k + s] : __nv_bfloat16(0.0f);
                edge[1][i] = k + r < K && first + s < N ? b[(size_t)(k + r) * N + first + s] : __nv_bfloat16(0.0f);
            }
            __syncwarp();
            wmma::load_matrix_sync(left, edge[0], 16);
            wmma::load_matrix_sync(right, edge[1], 16);
            __syncwarp();
        }
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(result, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32)
        if (top + i / 16 < M && first + i % 16 < N) c[(size_t)(top + i / 16) * N + first + i % 16] = result[i];
}
