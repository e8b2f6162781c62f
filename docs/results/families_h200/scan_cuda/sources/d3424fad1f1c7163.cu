/*
[[launch]]
kernel = "scan"
grid = ["ceil_div(rows, BLOCK if KIND == 0 else (BLOCK // 32 if KIND == 1 else 1))"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]
*/
#define KIND 2
#define BLOCK 128
#define ITEMS 4
#define STREAM 0

// Running sums of the ITEMS values that each lane of a warp holds, over all of them in order; returns their total.
__device__ float scan_warp(float (&value)[ITEMS], int lane) {
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) {
        value[i] += value[i - 1];
    }
    float sum = value[ITEMS - 1];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        float before = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) {
            sum += before;
        }
    }
    float total = __shfl_sync(0xffffffffu, sum, 31), before = __shfl_up_sync(0xffffffffu, sum, 1);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        value[i] += lane ? before : 0.0f;
    }
    return total;
}

__device__ void read(float (&value)[ITEMS], const float* from, int left, bool aligned) {
#if ITEMS % 4 == 0
    if (aligned && left >= ITEMS) {
#pragma unroll
        for (int i = 0; i < ITEMS; i += 4) {
            float4 four = *reinterpret_cast<const float4*>(from + i);
            value[i] = four.x, value[i + 1] = four.y, value[i + 2] = four.z, value[i + 3] = four.w;
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        value[i] = i < left ? from[i] : 0.0f;
    }
}

__device__ void write(float (&value)[ITEMS], float* to, int left, bool aligned) {
#if ITEMS % 4 == 0
    if (aligned && left >= ITEMS) {
#pragma unroll
        for (int i = 0; i < ITEMS; i += 4) {
            float4 four = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
            if (STREAM) {
                __stcs(reinterpret_cast<float4*>(to + i), four);
            } else {
                *reinterpret_cast<float4*>(to + i) = four;
            }
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (i < left) {
            to[i] = value[i];
        }
    }
}

// Kind 0 gives a row to a thread, kind 1 to a warp, kind 2 to a block; each goes along it ITEMS a thread at a time.
extern "C" __global__ void __launch_bounds__(BLOCK) scan(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    bool aligned = cols % 4 == 0;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float value[ITEMS];
#if KIND == 0
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row < rows) {
        float carry = 0.0f;
        for (int col = 0; col < cols; col += ITEMS) {
            read(value, x + (size_t)row * cols + col, cols - col, aligned);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                value[i] = carry += value[i];
            }
            write(value, out + (size_t)row * cols + col, cols - col, aligned);
        }
    }
#elif KIND == 1
    int row = blockIdx.x * (BLOCK / 32) + warp;
    if (row < rows) {
        float carry = 0.0f;
        for (int start = 0; start < cols; start += 32 * ITEMS) {
            int col = start + lane * ITEMS;
            read(value, x + (size_t)row * cols + col, cols - col, aligned);
            float total = scan_warp(value, lane);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                value[i] += carry;
            }
            carry += total;
            write(value, out + (size_t)row * cols + col, cols - col, aligned);
        }
    }
#else
    __shared__ float totals[2][BLOCK / 32];
    int row = blockIdx.x, turn = 0;
    float carry = 0.0f;
    for (int start = 0; start < cols; start += BLOCK * ITEMS, turn ^= 1) {
        int col = start + threadIdx.x * ITEMS;
        read(value, x + (size_t)row * cols + col, cols - col, aligned);
        float total = scan_warp(value, lane);
        if (lane == 0) {
            totals[turn][warp] = total;
        }
        __syncthreads();
        float before = carry;
#pragma unroll
        for (int i = 0; i < BLOCK / 32; ++i) {
            before += i < warp ? totals[turn][i] : 0.0f;
            carry += totals[turn][i];
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            value[i] += before;
        }
        write(value, out + (size_t)row * cols + col, cols - col, aligned);
    }
#endif
}
