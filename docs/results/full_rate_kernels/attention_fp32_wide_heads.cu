/*
[[launch]]
kernel = "scores_kernel"
grid = ["min(132 // CLUSTER, ceil_div(dim2_2, 128 * CLUSTER) * ceil_div(dim2, KEYS) * (dim0 * dim1)) * CLUSTER"]
block = ["384"]
shared = "4 * (128 + KEYS) * 128 + 1536"
cluster = ["CLUSTER"]
args = ["Q", "K", "bmm_rows", "dim0", "dim1", "dim2", "dim3", "dim2_2"]

[[launch]]
kernel = "values_kernel"
grid = ["min(132 // CLUSTER, ceil_div(dim2_2, 128 * CLUSTER) * ceil_div(dim3_3_2, COLUMNS) * (dim0 * dim1)) * CLUSTER"]
block = ["384"]
shared = "4 * (128 + COLUMNS) * 128 + 1536"
cluster = ["CLUSTER"]
args = ["bmm_rows", "V", "out", "dim0", "dim1", "dim2", "dim2_2", "dim3_3_2"]

[[scratch]]
name = "bmm_rows"
dtype = "float32"
shape = ["dim0 * dim1", "128 * ((dim2_2 + 127) // 128)", "2 * ((KEYS + dim2 - 1) // KEYS) + 32 * ((dim2 + 31) // 32)"]
*/
#include <attention.cuh>

#define KEYS 256
#define COLUMNS 256
#define CLUSTER 2
static_assert(KEYS == 64 || KEYS == 128 || KEYS == 256);
static_assert(COLUMNS == 64 || COLUMNS == 128 || COLUMNS == 256);
static_assert(CLUSTER == 1 || CLUSTER == 2);
static_assert(CLUSTER == 1 || (KEYS > 64 && COLUMNS > 64));

// aten.expand, aten.view, aten.permute, aten.bmm, aten.mul
extern "C" __global__ void __launch_bounds__(384, 1) scores_kernel(const float* __restrict__ Q,
        const float* __restrict__ K, float* __restrict__ bmm_rows, int dim0, int dim1, int dim2, int dim3,
        int dim2_2) {
    float factor = powf((float)(dim3), -0.5f);
    extern __shared__ unsigned char shared[];
    attention::compute_tiles<KEYS, CLUSTER>(shared, blocks::Tiling<128 * CLUSTER, KEYS, 8>{dim2_2, dim2, 0, (dim0 * dim1), 1}, [&](const blocks::Tile& tile) {
        const int batch = tile.batch;
        const float* const left_data = [&] {
            return Q + ((batch * dim2_2) * dim3);
        }();
        const blocks::ByTerm left{left_data, dim2_2, dim3, dim3};
        const float* const right_data = [&] {
            return K + ((batch * dim2) * dim3);
        }();
        const blocks::ByTerm right{right_data, dim2, dim3, dim3};
        const auto score = [=](int row, int column, float product) {
            float mul_18 = __fmul_rn(product, factor);
            return mul_18;
        };
        return attention::scores<KEYS, false>(left, right, {bmm_rows + (long long)batch * (128 * ((dim2_2 + 127) / 128)) * (2 * ((KEYS + dim2 - 1) / KEYS) + 32 * ((dim2 + 31) / 32)), dim2_2, dim2}, score);
    });
}

// aten.expand, aten.view, aten.permute, aten.bmm, aten.mul, aten.amax, aten.sub, aten.exp, aten.sum, aten.div
extern "C" __global__ void __launch_bounds__(384, 1) values_kernel(const float* __restrict__ bmm_rows,
        const float* __restrict__ V, float* __restrict__ out, int dim0, int dim1, int dim2, int dim2_2,
        int dim3_3_2) {
    extern __shared__ unsigned char shared[];
    attention::compute_tiles<COLUMNS, CLUSTER>(shared, blocks::Tiling<128 * CLUSTER, COLUMNS, 8>{dim2_2, dim3_3_2, 0, (dim0 * dim1), 1}, [&](const blocks::Tile& tile) {
        const int batch = tile.batch;
        const attention::PackedWeights left{bmm_rows + (long long)batch * (128 * ((dim2_2 + 127) / 128)) * (2 * ((KEYS + dim2 - 1) / KEYS) + 32 * ((dim2 + 31) / 32)), dim2_2, dim2};
        const float* const right_data = [&] {
            return V + ((batch * dim2) * dim3_3_2);
        }();
        const blocks::ByLine right{right_data, dim3_3_2, dim2, dim3_3_2};
        return attention::weighed<KEYS, false>(left, right, out, [=](int row, int column) {
            return (batch * dim2_2 + row) * dim3_3_2 + column;
        });
    });
}
