/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 32)", "ceil_div(M, 32)"]
block = [128]
args = ["a", "b", "c", "M", "N", "K"]
*/
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

// Float32 on bfloat16 tensor cores: each number is the sum of three bfloat16 numbers, and six of the nine products count.
// Tensor cores cut off what they add to: only 16 products at a time are left to them.
struct Parts {
    __nv_bfloat16 part[3];
    __device__ explicit Parts(float value) {
        for (int i = 0; i < 3; ++i) {
            part[i] = __float2bfloat16(value);
            value -= __bfloat162float(part[i]);
        }
    }
};

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ __align__(32) __nv_bfloat16 left[3][32][16], right[3][16][32];
    __shared__ __align__(32) float result[32][32];
    int warp = threadIdx.x / 32, down = warp / 2 * 16, across = warp % 2 * 16;
    int top = blockIdx.y * 32, first = blockIdx.x * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        for (int i = threadIdx.x; i < 512; i += 128) {
            int row = top + i / 16, at = k + i % 16;
            Parts ours(row < M && at < K ? a[row * K + at] : 0.0f);
            int line = k + i / 32, col = first + i % 32;
            Parts theirs(line < K && col < N ? b[line * N + col] : 0.0f);
            for (int p = 0; p < 3; ++p) left[p][i / 16][i % 16] = ours.part[p], right[p][i / 32][i % 32] = theirs.part[p];
        }
        __syncthreads();
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> step;
        wmma::fill_fragment(step, 0.0f);
        for (int order = 2; order >= 0; --order)
            for (int p = 0; p <= order; ++p) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> l;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> r;
                wmma::load_matrix_sync(l, &left[p][down][0], 16);
                wmma::load_matrix_sync(r, &right[order - p][0][across], 32);
                wmma::mma_sync(step, l, r, step);
            }
        for (int i = 0; i < sum.num_elements; ++i) sum.x[i] += step.x[i];
        __syncthreads();
    }
    wmma::store_matrix_sync(&result[down][across], sum, 32, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < 1024; i += 128) {
        int row = top + i / 32, col = first + i % 32;
        if (row < M && col < N) c[row * N + col] = result[i / 32][i % 32];
    }
}
