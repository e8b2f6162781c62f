/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out", "rows", "cols"]
*/
// race: rows are written at a pitch that is narrower than they are
extern "C" __global__ void k(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x;
    for (int c = threadIdx.x; c < cols; c += 128) {
        out[row * cols + c] = 2 * x[row * cols + c];  // clean
        out[row * (cols - 1) + c] = 2 * x[row * cols + c];  // bug found
    }
}
