/*
[[launch]]
kernel = "cumsum"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void cumsum(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += x[row * cols + col];
            out[row * cols + col] = sum;
        }
    }
}
