/*
[[launch]]
kernel = "clear"
grid = ["ceil_div(rows, 256)"]
block = [256]
args = ["y", "rows"]

[[launch]]
kernel = "spmv"
grid = ["ceil_div(nonzeros, 128)"]
block = [128]
args = ["offsets", "columns", "values", "x", "y", "rows", "nonzeros"]
*/
// Each thread searches the row of its element; lanes of one row are added up by a segmented scan, then atomically.
extern "C" __global__ void clear(float* y, int rows) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < rows) y[i] = 0.0f;
}

extern "C" __global__ void spmv(const int* offsets, const int* columns, const float* values, const float* x, float* y,
                                int rows, int nonzeros) {
    int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x % 32;
    int row = -1;
    float sum = 0.0f;
    if (i < nonzeros) {
        int low = 0, high = rows;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            (offsets[middle] <= i ? low : high) = middle;
        }
        row = low;
        sum = values[i] * x[columns[i]];
    }
    for (int s = 1; s < 32; s *= 2) {
        float left = __shfl_up_sync(~0u, sum, s);
        int of = __shfl_up_sync(~0u, row, s);
        if (lane >= s && of == row) sum += left;
    }
    int next = __shfl_down_sync(~0u, row, 1);
    if (row >= 0 && (lane == 31 || next != row)) atomicAdd(y + row, sum);
}
