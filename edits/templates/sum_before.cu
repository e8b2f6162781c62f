// The sum over the threads before this one; `total` becomes that over all threads of the block.
__device__ float sum_before(float value, float& total) {
    static_assert($threads % 32 == 0, "$threads must be a multiple of 32");
    __shared__ float sums[$threads / 32];
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
    for (int warp = 0; warp < $threads / 32; ++warp) {
        before += warp < threadIdx.x / 32 ? sums[warp] : 0.0f;
        total += sums[warp];
    }
    __syncthreads();
    return lane > 0 ? before + below : before;
}
