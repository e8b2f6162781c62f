/*
[[launch]]
kernel = "cumsum"
grid = ["rows"]
block = [128]
args = ["x", "out", "rows", "cols"]
*/
#include <limits>
#include <array>

// Each thread takes four elements in registers, warps scan by shuffles up, and what came before is carried along the row.
template <typename T, std::size_t N>
__device__ T scanned(std::array<T, N>& mine) {
    for (std::size_t i = 1; i < N; ++i) mine[i] += mine[i - 1];
    return mine.back();
}

extern "C" __global__ void cumsum(const float* x, float* out, int rows, int cols) {
    __shared__ float totals[4];
    const float* from = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float carried = 0.0f;
    static_assert(std::numeric_limits<float>::has_infinity, "");
    for (int first = 0; first < cols; first += 512) {
        int at = first + threadIdx.x * 4;
        std::array<float, 4> mine{};
        bool whole = cols % 4 == 0 && at + 3 < cols;
        if (whole) {
            float4 four = *reinterpret_cast<const float4*>(from + at);
            mine = {four.x, four.y, four.z, four.w};
        } else {
            for (int i = 0; i < 4; ++i)
                if (at + i < cols) mine[i] = from[at + i];
        }
        float all = scanned(mine), before = all;
        for (int s = 1; s < 32; s *= 2) {
            float other = __shfl_up_sync(~0u, before, s);
            if (lane >= s) before += other;
        }
        if (lane == 31) totals[warp] = before;
        before = __shfl_up_sync(~0u, before, 1);
        if (lane == 0) before = 0.0f;
        __syncthreads();
        float above = carried;
        for (int i = 0; i < 4; ++i) {
            if (i < warp) above += totals[i];
            carried += totals[i];
        }
        for (float& value : mine) value += above + before;
        if (whole) {
            *reinterpret_cast<float4*>(to + at) = make_float4(mine[0], mine[1], mine[2], mine[3]);
        } else {
            for (int i = 0; i < 4; ++i)
                if (at + i < cols) to[at + i] = mine[i];
        }
        __syncthreads();
    }
}
