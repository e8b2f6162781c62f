/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
