/*
[[launch]]
kernel = "spmv"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["offsets", "columns", "values", "x", "y", "rows"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void spmv(const int* offsets, const int* columns, const float* values, const float* x,
                                float* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        int end = offsets[row + 1];
        float sum = 0.0f;
        for (int i = offsets[row]; i < end; ++i) {
            sum += values[i] * x[columns[i]];
        }
        y[row] = sum;
    }
}
