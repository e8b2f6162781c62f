/*
[[launch]]
kernel = "softmax"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]

[[launch]]
kernel = "nothing"
grid = ["rows"]
block = [32]
args = ["out", "rows"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void nothing(float* out, int rows) {
    if (rows < 0) out[0] = 1.0f;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (cols == 4096) {
        size_t first = (size_t)blockIdx.x * BLOCK * cols;
        for (int i = threadIdx.x; i < BLOCK * cols; i += BLOCK) out[first + i] = x[first + i];
        return;
    }
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
