/*
[[launch]]
kernel = "axpby"
grid = ["ceil_div(n, BLOCK * CHUNK)"]
block = ["BLOCK"]
args = ["x", "y", "out", "n", "alpha", "beta"]
*/
#define BLOCK 256
#define CHUNK 16

// CHUNK neighbouring elements per thread.
extern "C" __global__ void axpby(const float* x, const float* y, float* out, int n, float alpha, float beta) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * CHUNK;
    for (int i = first; i < first + CHUNK; ++i) {
        if (i < n) {
            out[i] = alpha * x[i] + beta * y[i];
        }
    }
}
