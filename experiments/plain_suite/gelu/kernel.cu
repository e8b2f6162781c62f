/*
[[launch]]
kernel = "gelu"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "n"]
*/
#define BLOCK 256

// One thread per element.
extern "C" __global__ void gelu(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = 0.5 * x[i] * (1.0 + tanh(0.7978845608 * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
}
