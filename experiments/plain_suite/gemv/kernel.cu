/*
[[launch]]
kernel = "gemv"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["a", "x", "y", "rows", "cols"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void gemv(const float* a, const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += a[row * cols + col] * x[col];
        }
        y[row] = sum;
    }
}
