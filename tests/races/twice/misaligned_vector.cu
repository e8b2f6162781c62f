/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out", "rows", "cols"]
*/
// misaligned: rows of an odd width are read as vectors
extern "C" __global__ void k(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x;
    for (int c = 2 * threadIdx.x; c + 1 < cols; c += 256) {
        float2 v = make_float2(x[row * cols + c], x[row * cols + c + 1]);  // clean
        float2 v = *reinterpret_cast<const float2*>(x + row * cols + c);  // bug found
        out[row * cols + c] = 2 * v.x;
        out[row * cols + c + 1] = 2 * v.y;
    }
    if (cols % 2 && threadIdx.x == 0) out[row * cols + cols - 1] = 2 * x[row * cols + cols - 1];
}
