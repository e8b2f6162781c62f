/*
[[launch]]
kernel = "cumsum"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "rows", "cols"]
*/
#define THREADS 256

// The sum over the threads before this one; `total` becomes that over all threads of the block.
__device__ float block_sum_before(float value, float& total) {
    static_assert(THREADS % 32 == 0, "THREADS must be a multiple of 32");
    __shared__ float sums[THREADS / 32];
    const int lane = threadIdx.x % 32;
    float inclusive = value;
    #pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float other = __shfl_up_sync(0xffffffff, inclusive, offset);
        inclusive = lane >= offset ? inclusive + other : inclusive;
    }
    if (lane == 31) {
        sums[threadIdx.x / 32] = inclusive;
    }
    __syncthreads();
    const float below = __shfl_up_sync(0xffffffff, inclusive, 1);
    float before = 0.0f;
    total = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) {
        before += warp < threadIdx.x / 32 ? sums[warp] : 0.0f;
        total += sums[warp];
    }
    __syncthreads();
    return lane > 0 ? before + below : before;
}

// Whether 16 bytes may be read or written there at once.
__device__ bool is_aligned(const void* address) {
    return reinterpret_cast<size_t>(address) % 16 == 0;
}

// One block per row, 4 neighbouring elements a thread.
extern "C" __global__ void cumsum(const float* x, float* out, int rows, int cols) {
    const int row = blockIdx.x;
    const bool whole = is_aligned(&x[row * cols + 0]) && is_aligned(&out[row * cols + 0]);
    float carry = 0.0f;
    for (int tile = 0; tile < cols; tile += 4 * THREADS) {
        const int first_col = tile + 4 * threadIdx.x;
        alignas(16) float x_lanes[4];
        alignas(16) float out_lanes[4];
        if (whole && first_col + 4 <= cols) {
            *reinterpret_cast<float4*>(x_lanes) = *reinterpret_cast<const float4*>(&x[row * cols + first_col]);
        } else {
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
                x_lanes[lane] = first_col + lane < cols ? x[row * cols + (first_col + lane)] : static_cast<float>(0.0f);
            }
        }
        float share = 0.0f;
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
            share += x_lanes[lane];
        }
        float block_total;
        float sum = carry + block_sum_before(share, block_total);
        carry += block_total;
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
            sum += x_lanes[lane];
            out_lanes[lane] = sum;
        }
        if (whole && first_col + 4 <= cols) {
            *reinterpret_cast<float4*>(&out[row * cols + first_col]) = *reinterpret_cast<const float4*>(out_lanes);
        } else {
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
                if (first_col + lane < cols) {
                    out[row * cols + (first_col + lane)] = out_lanes[lane];
                }
            }
        }
    }
}
