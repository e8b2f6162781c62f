/*
[[launch]]
kernel = "reset"
grid = [1]
block = [1]

[[launch]]
kernel = "gather"
grid = ["min(264, ceil_div(n, 512))"]
block = [512]
args = ["x", "n"]

[[launch]]
kernel = "publish"
grid = [1]
block = [1]
args = ["out"]
*/
// A __device__ variable of float64 that every run sets anew before it adds to it.
__device__ double total;

extern "C" __global__ void reset() { total = 0.0; }

extern "C" __global__ void gather(const float* x, int n) {
    double sum = 0.0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        sum += x[i];
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, s);
    if (threadIdx.x % warpSize == 0) atomicAdd(&total, sum);
}

extern "C" __global__ void publish(float* out) { *out = (float)total; }
