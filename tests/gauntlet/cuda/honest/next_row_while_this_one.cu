/*
[[launch]]
kernel = "rmsnorm"
grid = ["min(rows, 528)"]
block = [256]
shared = "3 * ceil_div(cols * 2, 16) * 16"
args = ["x", "weight", "out", "rows", "cols", "eps"]
*/
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cstdint>
#include <type_traits>

// Persistent blocks copy the next row to shared memory while they work on this one; the dynamic array is cut in three.
template <typename T>
__device__ T* carve(unsigned char*& free, int count) {
    static_assert(std::is_trivially_copyable<T>::value, "moved by bytes");
    T* found = reinterpret_cast<T*>(free);
    free += (count * sizeof(T) + 15) / 16 * 16;
    return found;
}

__device__ void fetch(__nv_bfloat16* to, const __nv_bfloat16* from, int count) {
    if (count % 8 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        for (int i = threadIdx.x * 8; i < count; i += 256 * 8) __pipeline_memcpy_async(to + i, from + i, 16);
    } else {
        for (int i = threadIdx.x; i < count; i += 256) to[i] = from[i];
    }
    __pipeline_commit();
}

extern "C" __global__ void rmsnorm(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out, int rows,
                                   int cols, float eps) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float parts[8];
    unsigned char* free = memory;
    auto* scales = carve<__nv_bfloat16>(free, cols);
    __nv_bfloat16* kept[2] = {carve<__nv_bfloat16>(free, cols), carve<__nv_bfloat16>(free, cols)};
    fetch(scales, weight, cols);
    fetch(kept[0], x + (size_t)blockIdx.x * cols, cols);
    for (int row = blockIdx.x, turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        int next = row + gridDim.x;
        if (next < rows) {
            fetch(kept[turn ^ 1], x + (size_t)next * cols, cols);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        float squares = 0.0f;
        for (int i = threadIdx.x; i < cols; i += 256) {
            float value = __bfloat162float(kept[turn][i]);
            squares = fmaf(value, value, squares);
        }
        for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
        __syncthreads();
        squares = 0.0f;
        for (float part : parts) squares += part;
        float scale = rsqrtf(squares / cols + eps);
        for (int i = threadIdx.x; i < cols; i += 256)
            out[(size_t)row * cols + i] = __float2bfloat16(__bfloat162float(kept[turn][i]) * scale * __bfloat162float(scales[i]));
        __syncthreads();
    }
}
