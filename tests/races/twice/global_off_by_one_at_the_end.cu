/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// out_of_bounds: the guard lets one element too many through
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) {  // clean
    if (i <= n) {  // bug
        out[i] = 2 * x[i];  // found
    }
}
