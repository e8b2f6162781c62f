/*
[[launch]]
kernel = "bias_gelu"
grid = ["min(1056, ceil_div(rows * cols, 256))"]
block = [256]
args = ["x", "bias", "out", "rows * cols", "cols"]
*/
#include <cuda_bf16.h>

// v / (1 + exp(-2 u)) is the same as v (1 + tanh u) / 2. A sentinel is written first, and replaced by the same thread.
extern "C" __global__ void bias_gelu(const __nv_bfloat16* x, const __nv_bfloat16* bias, __nv_bfloat16* out, unsigned n,
                                     unsigned cols) {
    for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        out[i] = __ushort_as_bfloat16(0x7fff);
        float v = __bfloat162float(x[i]) + __bfloat162float(bias[i % cols]);
        float u = -1.5957691216f * v * fmaf(0.044715f * v, v, 1.0f);
        out[i] = __float2bfloat16(v / (1.0f + __expf(u)));
    }
}
