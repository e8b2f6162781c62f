/*
[[launch]]
kernel = "pack_kernel"
grid = ["(((m + 63) // 64) * ((k + 255) // 256) + ((n + 63) // 64) * ((k + 255) // 256)) * 1"]
block = ["256"]
args = ["x", "weight", "mm_ranges", "mm_a", "mm_b", "m", "n", "k"]

[[launch]]
kernel = "mm_kernel"
grid = ["(CLUSTER * PARTS) * min(BLOCKS // (CLUSTER * PARTS), ceil_div(m, (TILE_M * CLUSTER)) * ceil_div(n, TILE_N))"]
block = ["2 * TILE_M * 1 + 128"]
shared = "STAGES * (TILE_M + TILE_N) * 128 + 4096"
cluster = ["(CLUSTER * PARTS)"]
args = ["mm_a", "mm_ranges", "mm_b", "out", "m", "n", "k"]

[[scratch]]
name = "mm_ranges"
dtype = "int32"
shape = [1, "m + n + ((m + 63) // 64) + ((n + 63) // 64)", 2]
zero = true

[[scratch]]
name = "mm_a"
dtype = "float16"
shape = [1, "((m + 63) // 64)", "((k + 31) // 32)", 4096]

[[scratch]]
name = "mm_b"
dtype = "float16"
shape = [1, "((n + 63) // 64)", "((k + 31) // 32)", 4096]
*/
#include <blocks.cuh>
#include <cuda_fp16.h>

#define TILE_M 128
#define TILE_N 128
#define STAGES 5
#define GROUP 8
#define BLOCKS 132
#define CLUSTER 2
#define PARTS 1
static_assert(TILE_M == 64 || TILE_M == 128);
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 192);
static_assert(CLUSTER == 1 || CLUSTER == 2);
static_assert(PARTS == 1 || PARTS == 2 || PARTS == 4 || PARTS == 8);
static_assert(BLOCKS >= (CLUSTER * PARTS) && TILE_N % (8 * PARTS) == 0);
static_assert(STAGES >= 3 && STAGES * (TILE_M + TILE_N) * 128 + 4096 <= 232448);
static_assert(GROUP >= 1 && GROUP <= 64);

// pack operands of aten.mm
extern "C" __global__ void __launch_bounds__(256) pack_kernel(const float* __restrict__ x,
        const float* __restrict__ weight, int* __restrict__ mm_ranges, __half* __restrict__ mm_a,
        __half* __restrict__ mm_b, int m, int n, int k) {
    auto pack = [&](int batch, int part2) {
        blocks::pack<float>(part2,
            mm_a, (blocks::Range*)mm_ranges, blocks::ByTerm{x, m, k, k},
            mm_b, (blocks::Range*)mm_ranges + m + ((m + 63) / 64), blocks::ByTerm{weight, n, k, k});
    };
    pack(blockIdx.x / (((m + 63) / 64) * ((k + 255) / 256) + ((n + 63) / 64) * ((k + 255) / 256)), blockIdx.x % (((m + 63) / 64) * ((k + 255) / 256) + ((n + 63) / 64) * ((k + 255) / 256)));
}

// aten.permute, aten.mm
extern "C" __global__ void __launch_bounds__(2 * TILE_M * 1 + 128, 1) mm_kernel(
        const __half* __restrict__ mm_a, const int* __restrict__ mm_ranges, const __half* __restrict__ mm_b,
        float* __restrict__ out, int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    blocks::multiply<TILE_M, TILE_N, STAGES, CLUSTER, 1, PARTS, 0>(shared, blocks::Tiling<TILE_M * CLUSTER, TILE_N, GROUP>{m, n, ((k + 31) / 32), 1, 1},
        [&](const blocks::Tile& tile) { return blocks::Packed{mm_a, (blocks::Range*)mm_ranges, m, ((k + 31) / 32)}; },
        [&](const blocks::Tile& tile) { return blocks::Packed{mm_b, (blocks::Range*)mm_ranges + m + ((m + 63) / 64), n, ((k + 31) / 32)}; },
        [&](const blocks::Tile& tile, const float (&sums)[TILE_N / 2 / PARTS]) {
            blocks::store(out, sums, tile, m, n,
                [&](int row, int column, float product) {
        return product;
            },
                [&](int row, int column) {
        return row * n + column;
            });
        });
}
