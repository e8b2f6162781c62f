/*
[[launch]]
kernel = "bias_gelu"
grid = ["rows"]
block = [256]
args = ["x", "bias", "out", "cols"]
*/
#include <cuda_bf16.h>

// Two elements at a time where rows are aligned for it, one otherwise; tanh is one instruction of inline PTX.
__device__ __forceinline__ float gelu(float value) {
    float inner = 0.7978845608f * fmaf(0.044715f * value * value, value, value), t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(inner));
    return fmaf(0.5f * value, t, 0.5f * value);
}

extern "C" __global__ void bias_gelu(const __nv_bfloat16* x, const __nv_bfloat16* bias, __nv_bfloat16* out, int cols) {
    const __nv_bfloat16* from = x + (size_t)blockIdx.x * cols;
    __nv_bfloat16* to = out + (size_t)blockIdx.x * cols;
    int done = 0;
    if (reinterpret_cast<size_t>(from) % 4 == 0 && reinterpret_cast<size_t>(to) % 4 == 0) {
        done = cols & ~1;
        for (int i = 2 * threadIdx.x; i < done; i += 512) {
            float2 value = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + i));
            float2 shift = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(bias + i));
            *reinterpret_cast<__nv_bfloat162*>(to + i) =
                __floats2bfloat162_rn(gelu(value.x + shift.x), gelu(value.y + shift.y));
        }
    }
    for (int i = done + threadIdx.x; i < cols; i += 256)
        to[i] = __float2bfloat16(gelu(__bfloat162float(from[i]) + __bfloat162float(bias[i])));
}
