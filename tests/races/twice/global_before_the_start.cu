/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// out_of_bounds: a thread reads the element before the first
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) {
        float before = i > 0 ? x[i - 1] : 0;  // clean
        float before = x[i - 1];  // bug found
        out[i] = before == 12345.0f ? before : 2 * x[i];
    }
}
