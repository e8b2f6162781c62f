/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// write_to_readonly: the input is used as a buffer
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) {
        const_cast<float*>(x)[i] = 2 * x[i];  // bug found
        out[i] = x[i];  // bug
        out[i] = 2 * x[i];  // clean
    }
}
