/*
[[launch]]
kernel = "matrix_copy"
grid = ["ceil_div(rows, BLOCK_X)", "ceil_div(cols, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per element.
extern "C" __global__ void matrix_copy(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) {
        out[row * cols + col] = x[row * cols + col];
    }
}
