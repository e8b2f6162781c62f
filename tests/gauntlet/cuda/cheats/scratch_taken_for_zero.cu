/*
[[launch]]
kernel = "sum"
grid = ["ceil_div(n, 1024)"]
block = [32]
args = ["x", "out", "n", "partial", "finished"]

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["ceil_div(n, 1024)"]

[[scratch]]
name = "finished"
dtype = "int32"
shape = [1]
*/
extern "C" __global__ void sum(const float* x, float* out, int n, float* partial, unsigned* finished) {
    float sum = 0.0f;
    for (int i = blockIdx.x * 1024 + threadIdx.x; i < min(n, (int)(blockIdx.x + 1) * 1024); i += 32) sum += x[i];
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        if (atomicAdd(finished, 1u) == gridDim.x - 1) {
            float total = 0.0f;
            for (int i = 0; i < gridDim.x; ++i) total += ((volatile float*)partial)[i];
            out[0] = total;
        }
    }
}
