/*
[[launch]]
kernel = "rmsnorm"
grid = ["ceil_div(rows, 16)"]
block = [128]
args = ["x", "weight", "out", "rows", "cols", "eps"]
*/
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;

// Tiles of eight lanes from cooperative groups, a row for each; the sum through their reduction.
extern "C" __global__ void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out, int rows,
                                   int cols, float eps) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int row = blockIdx.x * 16 + tile.meta_group_rank();
    if (row >= rows) return;
    const __nv_bfloat16* from = x + (size_t)row * cols;
    float squares = 0.0f;
    for (int i = tile.thread_rank(); i < cols; i += tile.size()) {
        float value = __bfloat162float(from[i]);
        squares = fmaf(value, value, squares);
    }
    float scale = rsqrtf(cg::reduce(tile, squares, cg::plus<float>()) / cols + eps);
    for (int i = tile.thread_rank(); i < cols; i += tile.size())
        out[(size_t)row * cols + i] = __float2bfloat16(__bfloat162float(from[i]) * scale * __bfloat162float(weight[i]));
}
