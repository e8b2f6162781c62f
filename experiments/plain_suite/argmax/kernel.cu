/*
[[launch]]
kernel = "argmax"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "index", "rows", "cols"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void argmax(const float* x, int* index, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float largest = x[row * cols];
        int best = 0;
        for (int col = 1; col < cols; ++col) {
            if (x[row * cols + col] > largest) {
                largest = x[row * cols + col];
                best = col;
            }
        }
        index[row] = best;
    }
}
