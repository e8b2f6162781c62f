/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(rows, 33)", "ceil_div(cols, 33)"]
block = [33]
args = ["x", "out", "rows", "cols"]
*/
// Blocks of 33 threads: the last warp has a single lane, and tiles of 33 need no padding.
extern "C" __global__ void transpose(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[33][33];
    int top = blockIdx.x * 33, left = blockIdx.y * 33, t = threadIdx.x;
    for (int i = 0; i < 33 && top + i < rows; ++i)
        if (left + t < cols) tile[i][t] = x[(size_t)(top + i) * cols + left + t];
    __syncthreads();
    for (int i = 0; i < 33 && left + i < cols; ++i)
        if (top + t < rows) out[(size_t)(left + i) * rows + top + t] = tile[t][i];
}
