/*
[[launch]]
kernel = "softmax"
grid = ["2 * rows"]
block = [64]
args = ["x", "out", "rows", "cols"]
*/
// The grid is twice what is needed: half of the blocks leave at once.
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    __shared__ float two[2];
    if (blockIdx.x >= rows) return;
    const float* from = x + (size_t)blockIdx.x * cols;
    int warp = threadIdx.x / 32;
    float largest = from[0], sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 64) largest = fmaxf(largest, from[i]);
    for (int s = 16; s; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    if (threadIdx.x % 32 == 0) two[warp] = largest;
    __syncthreads();
    largest = fmaxf(two[0], two[1]);
    for (int i = threadIdx.x; i < cols; i += 64) sum += expf(from[i] - largest);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    __syncthreads();
    if (threadIdx.x % 32 == 0) two[warp] = sum;
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 64)
        out[(size_t)blockIdx.x * cols + i] = expf(from[i] - largest) / (two[0] + two[1]);
}
