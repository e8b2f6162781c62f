/*
[[launch]]
kernel = "sum"
grid = [1]
block = [256]
args = ["x", "out", "n"]
*/
extern "C" __global__ void sum(const float* x, float* out, int n) {
    __shared__ float tile[256];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) sum += x[i];
    tile[threadIdx.x] = sum;
    for (int s = 128; s; s >>= 1) {
        if (threadIdx.x < s) tile[threadIdx.x] += tile[threadIdx.x + s];
    }
    if (threadIdx.x == 0) out[0] = tile[0];
}
