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
    for (int i = threadIdx.x; i < n; i += 128) {
        sum += x[i];
        tile[threadIdx.x] = sum;
        __syncthreads();
    }
    tile[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 128; ++i) sum += tile[i];
        out[0] = sum;
    }
}
