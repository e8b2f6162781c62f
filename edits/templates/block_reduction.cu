// The $words over the threads of a block, returned to all of them.
__device__ float $name(float value) {
    static_assert(($threads & ($threads - 1)) == 0, "$threads must be a power of two");
    __shared__ float partial[$threads];
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int stride = $threads / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] = $combined;
        }
        __syncthreads();
    }
    const float result = partial[0];
    __syncthreads();
    return result;
}
