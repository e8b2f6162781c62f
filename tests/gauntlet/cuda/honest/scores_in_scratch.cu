/*
[[launch]]
kernel = "scores_of"
grid = ["ceil_div(seq, 16)", "ceil_div(seq, 16)", "heads"]
block = [16, 16]
args = ["q", "k", "scores", "seq", "dim"]

[[launch]]
kernel = "softmax"
grid = ["seq", "heads"]
block = [64]
args = ["scores", "sums", "seq"]

[[launch]]
kernel = "average"
grid = ["ceil_div(dim, 32)", "ceil_div(seq, 16)", "heads"]
block = [16, 16]
args = ["scores", "sums", "v", "out", "seq", "dim"]

[[scratch]]
name = "scores"
dtype = "bfloat16"
shape = ["heads", "seq", "2 * seq"]

[[scratch]]
name = "sums"
dtype = "float32"
shape = ["heads", "seq"]
*/
#include <cuda_bf16.h>
#include <math_constants.h>

// Three launches. Scores of float32 lie in a scratch buffer of twice as many bfloat16, which is read as what was written.
extern "C" __global__ void scores_of(const __nv_bfloat16* q, const __nv_bfloat16* k, float* scores, int seq, int dim) {
    __shared__ float ours[16][33], theirs[16][33];
    int tx = threadIdx.x, ty = threadIdx.y, first = blockIdx.x * 16, top = blockIdx.y * 16;
    if (first > top) return; // tiles above the diagonal
    size_t head = (size_t)blockIdx.z * seq;
    float score = 0.0f;
    for (int d = 0; d < dim; d += 32) {
        for (int i = tx; i < 32; i += 16) {
            ours[ty][i] = top + ty < seq && d + i < dim ? __bfloat162float(q[(head + top + ty) * dim + d + i]) : 0.0f;
            theirs[ty][i] = first + ty < seq && d + i < dim ? __bfloat162float(k[(head + first + ty) * dim + d + i]) : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < 32; ++i) score = fmaf(ours[ty][i], theirs[tx][i], score);
        __syncthreads();
    }
    if (first + tx <= top + ty && top + ty < seq) scores[(head + top + ty) * seq + first + tx] = score / sqrtf(dim);
}

extern "C" __global__ void softmax(float* scores, float* sums, int seq) {
    __shared__ float two[2];
    int query = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* row = scores + ((size_t)blockIdx.y * seq + query) * seq;
    float largest = -CUDART_INF_F, sum = 0.0f;
    for (int i = threadIdx.x; i <= query; i += 64) largest = fmaxf(largest, row[i]);
    for (int s = 16; s; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    if (lane == 0) two[warp] = largest;
    __syncthreads();
    largest = fmaxf(two[0], two[1]);
    for (int i = threadIdx.x; i <= query; i += 64) sum += row[i] = expf(row[i] - largest);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    __syncthreads();
    if (lane == 0) two[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) sums[(size_t)blockIdx.y * seq + query] = two[0] + two[1];
}

extern "C" __global__ void average(const float* scores, const float* sums, const __nv_bfloat16* v, __nv_bfloat16* out,
                                   int seq, int dim) {
    __shared__ float weights[16][17], values[16][33];
    int tx = threadIdx.x, ty = threadIdx.y, d = blockIdx.x * 32 + tx, query = blockIdx.y * 16 + ty;
    size_t head = (size_t)blockIdx.z * seq;
    float total[2] = {};
    for (int first = 0; first <= (int)blockIdx.y * 16; first += 16) {
        // What lies beyond the diagonal was never written.
        weights[ty][tx] = query < seq && first + tx <= query ? scores[(head + query) * seq + first + tx] : 0.0f;
        for (int e = 0; e < 2; ++e)
            values[ty][tx + 16 * e] = first + ty < seq && d + 16 * e < dim ? __bfloat162float(v[(head + first + ty) * dim + d + 16 * e]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16 && first + i <= query; ++i)
            for (int e = 0; e < 2; ++e) total[e] = fmaf(weights[ty][i], values[i][tx + 16 * e], total[e]);
        __syncthreads();
    }
    for (int e = 0; e < 2; ++e)
        if (query < seq && d + 16 * e < dim) out[(head + query) * dim + d + 16 * e] = __float2bfloat16(total[e] / sums[head + query]);
}
