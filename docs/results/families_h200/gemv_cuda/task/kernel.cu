/*
[[launch]]
kernel = "gemv"
grid = ["ceil_div(rows, ROWS * (BLOCK if KIND == 0 else (BLOCK // 32 if KIND == 1 else 1)))"]
block = ["BLOCK"]
args = ["a", "x", "y", "rows", "cols"]
*/
#define KIND 1
#define BLOCK 128
#define ROWS 1
#define VECTOR 4
#define UNROLL 2

__device__ float dot(const float* a, const float* x) {
#if VECTOR == 4
    float4 left = *reinterpret_cast<const float4*>(a), right = *reinterpret_cast<const float4*>(x);
    return left.x * right.x + left.y * right.y + left.z * right.z + left.w * right.w;
#elif VECTOR == 2
    float2 left = *reinterpret_cast<const float2*>(a), right = *reinterpret_cast<const float2*>(x);
    return left.x * right.x + left.y * right.y;
#else
    return *a * *x;
#endif
}

// Kind 0 gives ROWS rows to a thread, kind 1 to a warp, kind 2 to a block.
extern "C" __global__ void __launch_bounds__(BLOCK) gemv(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
#if KIND == 0
    int first = (blockIdx.x * BLOCK + thread) * ROWS, begin = 0, step = 1;
#elif KIND == 1
    int first = (blockIdx.x * (BLOCK / 32) + warp) * ROWS, begin = lane, step = 32;
#else
    int first = blockIdx.x * ROWS, begin = thread, step = BLOCK;
#endif
    float sums[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        sums[i] = 0.0f;
    }
    int whole = cols % VECTOR ? 0 : cols;
#pragma unroll UNROLL
    for (int col = begin * VECTOR; col < whole; col += step * VECTOR) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (first + i < rows) {
                sums[i] += dot(a + (size_t)(first + i) * cols + col, x + col);
            }
        }
    }
    for (int col = whole + begin; col < cols; col += step) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (first + i < rows) {
                sums[i] += a[(size_t)(first + i) * cols + col] * x[col];
            }
        }
    }
#if KIND > 0
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int distance = 16; distance; distance /= 2) {
            sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
        }
    }
#endif
#if KIND == 2
    __shared__ float parts[ROWS][BLOCK / 32];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (lane == 0) {
            parts[i][warp] = sums[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        sums[i] = 0.0f;
        for (int part = 0; part < BLOCK / 32; ++part) {
            sums[i] += parts[i][part];
        }
    }
#endif
    if (KIND == 0 || (KIND == 1 && lane == 0) || (KIND == 2 && thread == 0)) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (first + i < rows) {
                y[first + i] = sums[i];
            }
        }
    }
}
