/*
[[launch]]
kernel = "sum"
grid = [1]
block = [128]
args = ["x", "out", "n"]
*/
extern "C" __global__ void sum(const float* x, float* out, int n) {
    __shared__ float tile[128];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[i];
    tile[threadIdx.x + 1] = sum;
    __syncthreads();
    for (int s = 64; s; s >>= 1) {
        if (threadIdx.x < s) tile[threadIdx.x + 1] += tile[threadIdx.x + 1 + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = tile[1];
}
