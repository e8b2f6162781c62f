/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// out_of_bounds: a byte offset is computed in 32 bits before it is widened
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) {
        long long at = (long long)(int)((unsigned)i * 0x1000000u) >> 24;  // bug
        long long at = ((long long)i * 0x1000000) >> 24;  // clean
        out[at] = 2 * x[at];  // found
    }
}
