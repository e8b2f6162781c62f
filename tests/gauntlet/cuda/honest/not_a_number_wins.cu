/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [64]
args = ["x", "out", "cols"]
*/
// Maxima that keep a NaN, where fmaxf would drop it.
__device__ float most(float a, float b) { return a > b || isnan(a) ? a : b; }

extern "C" __global__ void softmax(const float* x, float* out, int cols) {
    __shared__ float two[2];
    const float* from = x + (size_t)blockIdx.x * cols;
    int warp = threadIdx.x / 32;
    float largest = from[0], sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 64) largest = most(from[i], largest);
    for (int s = 16; s; s >>= 1) largest = most(__shfl_xor_sync(~0u, largest, s), largest);
    if (threadIdx.x % 32 == 0) two[warp] = largest;
    __syncthreads();
    largest = most(two[0], two[1]);
    for (int i = threadIdx.x; i < cols; i += 64) sum += expf(from[i] - largest);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    __syncthreads();
    if (threadIdx.x % 32 == 0) two[warp] = sum;
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 64)
        out[(size_t)blockIdx.x * cols + i] = expf(from[i] - largest) / (two[0] + two[1]);
}
