/*
[[launch]]
kernel = "attention_kernel"
grid = ["min(BLOCKS // SPLITS, ceil_div(m, 128) * (b * h)) * SPLITS"]
block = ["384"]
shared = "(128 + 4 * KEYS) * ((HEAD + 63) // 64 * 64) * 2 + 2048"
cluster = ["SPLITS"]
args = ["q", "k", "v", "out", "q_map", "k_map", "v_map", "b", "h", "m", "n"]

[[tensor_map]]
name = "q_map"
tensor = "q"
box = [1, 64, 64]
shape = ["b * h", "m", 128]
swizzle = 128
optional = true

[[tensor_map]]
name = "k_map"
tensor = "k"
box = [1, 64, 64]
shape = ["b * h", "n", 128]
swizzle = 128
optional = true

[[tensor_map]]
name = "v_map"
tensor = "v"
box = [1, 64, 64]
shape = ["b * h", "n", 128]
swizzle = 128
optional = true
*/
#include <attention.cuh>
#include <cuda_bf16.h>

#define BLOCKS 132
#define SPLITS 2
#define HEAD 128
#define KEYS 128
static_assert(SPLITS == 1 || SPLITS == 2 || SPLITS == 4 || SPLITS == 8);
static_assert(KEYS == 64 || KEYS == 128);
static_assert((128 + 4 * KEYS) * ((HEAD + 63) / 64 * 64) * 2 + 2048 <= 232448);
static_assert(BLOCKS >= SPLITS);
static_assert(HEAD % 16 == 0 && HEAD % (8 * SPLITS) == 0 && HEAD <= 256);

// aten.expand, aten.view, aten.permute, aten.bmm, aten.mul, aten._to_copy, aten.amax, aten.sub, aten.exp, aten.sum, aten.div
extern "C" __global__ void __launch_bounds__(384, 1) attention_kernel(const __nv_bfloat16* __restrict__ q,
        const __nv_bfloat16* __restrict__ k, const __nv_bfloat16* __restrict__ v,
        __nv_bfloat16* __restrict__ out, const __grid_constant__ blocks::TensorMap q_map,
        const __grid_constant__ blocks::TensorMap k_map, const __grid_constant__ blocks::TensorMap v_map,
        int b, int h, int m, int n) {
    extern __shared__ unsigned char shared[];
    attention::attend<HEAD, KEYS, false, __nv_bfloat16, SPLITS>(shared, ((m + 127) / 128) * (b * h), [&](int tile) {
        const int batch = tile / ((m + 127) / 128);
        const __nv_bfloat16* const left_data = [&] {
            return q + ((batch * m) * 128);
        }();
        const blocks::Stored<__nv_bfloat16, true> left{&q_map, left_data, m, 128, (int)((left_data - q) / (m * 128)), 128};
        const __nv_bfloat16* const right_data = [&] {
            return k + ((batch * n) * 128);
        }();
        const blocks::Stored<__nv_bfloat16, true> right{&k_map, right_data, n, 128, (int)((right_data - k) / (n * 128)), 128};
        const __nv_bfloat16* const values_data = [&] {
            return v + ((batch * n) * 128);
        }();
        const blocks::Stored<__nv_bfloat16, true> values{&v_map, values_data, n, 128, (int)((values_data - v) / (n * 128)), 128};
        const auto score = [=](int row, int column, float product) {
            float mul_18 = product * 0.08838834764831845f;
            return mul_18;
        };
        return attention::part(left, right, values, tile % ((m + 127) / 128) * 128, attention::Multiple{score(0, 0, 1.0f)}, out, [=](int row, int column) {
            return (batch * m + row) * 128 + column;
        });
    });
}
