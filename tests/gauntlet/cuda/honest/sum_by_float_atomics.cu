/*
[[launch]]
kernel = "clear"
grid = [1]
block = [1]
args = ["out"]

[[launch]]
kernel = "sum"
grid = ["min(ceil_div(n, 1024), 528)"]
block = [256]
args = ["x", "out", "n"]
*/
// The blocks add to the output in any order, after a launch that clears it.
extern "C" __global__ void clear(float* out) { *out = 0.0f; }

extern "C" __global__ void sum(const float* __restrict__ x, float* out, int n) {
    __shared__ float warps[8];
    float sum = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) sum += x[i];
    for (int s = 16; s; s >>= 1) sum += __shfl_down_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) sum += warps[w];
        atomicAdd(out, sum);
    }
}
