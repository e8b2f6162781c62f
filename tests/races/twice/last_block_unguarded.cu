/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// out_of_bounds: the last block writes a whole block's worth
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    float v = i < n ? x[i] : 0;
    if (i < n)  // clean
    out[i] = 2 * v;  // found
}
