/*
[[launch]]
kernel = "softmax"
grid = ["2 * rows"]
block = [256]
args = ["x", "out", "rows", "cols"]
*/
#include <cooperative_groups.h>
#include <math_constants.h>
namespace cg = cooperative_groups;

// Each row belongs to a cluster of two blocks, which read each other's shared memory.
__device__ float over_cluster(float value, bool largest) {
    __shared__ float warps[8];
    __shared__ float half;
    cg::cluster_group cluster = cg::this_cluster();
    for (int s = 16; s; s >>= 1) {
        float other = __shfl_xor_sync(~0u, value, s);
        value = largest ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        half = warps[0];
        for (int i = 1; i < 8; ++i) half = largest ? fmaxf(half, warps[i]) : half + warps[i];
    }
    cluster.sync();
    float mine = *cluster.map_shared_rank(&half, 0), theirs = *cluster.map_shared_rank(&half, 1);
    cluster.sync(); // nobody overwrites or leaves before the other has read
    return largest ? fmaxf(mine, theirs) : mine + theirs;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) softmax(const float* x, float* out, int rows, int cols) {
    size_t row = blockIdx.x / 2;
    int first = blockIdx.x % 2 * 256 + threadIdx.x;
    x += row * cols;
    out += row * cols;
    float largest = -CUDART_INF_F, sum = 0.0f;
    for (int i = first; i < cols; i += 512) largest = fmaxf(largest, x[i]);
    largest = over_cluster(largest, true);
    for (int i = first; i < cols; i += 512) sum += expf(x[i] - largest);
    sum = over_cluster(sum, false);
    for (int i = first; i < cols; i += 512) out[i] = expf(x[i] - largest) / sum;
}
