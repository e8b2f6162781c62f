/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per element: coalesced reads, strided writes.
extern "C" __global__ void transpose(const float* x, float* out, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) {
        out[col * rows + row] = x[row * cols + col];
    }
}
