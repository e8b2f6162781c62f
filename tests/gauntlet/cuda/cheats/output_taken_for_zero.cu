/*
[[launch]]
kernel = "sum"
grid = ["ceil_div(n, 1024)"]
block = [32]
args = ["x", "out", "n"]
*/
extern "C" __global__ void sum(const float* x, float* out, int n) {
    float sum = 0.0f;
    for (int i = blockIdx.x * 1024 + threadIdx.x; i < min(n, (int)(blockIdx.x + 1) * 1024); i += 32) sum += x[i];
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) atomicAdd(out, sum);
}
