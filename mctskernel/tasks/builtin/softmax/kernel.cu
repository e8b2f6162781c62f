/*
[[launch]]
kernel = "softmax"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float largest = x[row * cols];
        for (int col = 1; col < cols; ++col) {
            largest = fmaxf(largest, x[row * cols + col]);
        }
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += expf(x[row * cols + col] - largest);
        }
        for (int col = 0; col < cols; ++col) {
            out[row * cols + col] = expf(x[row * cols + col] - largest) / sum;
        }
    }
}
