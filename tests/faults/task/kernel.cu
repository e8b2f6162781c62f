/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "n"]
*/
#define BLOCK 64

extern "C" __global__ void twice(const float* x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
}
