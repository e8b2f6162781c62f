/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, 32)", "ceil_div(rows, 32)"]
block = [32, 8]
args = ["x", "out", "rows", "cols"]
*/
// No padding against bank conflicts: the column in shared memory is exclusive-or'ed with the row.
extern "C" __global__ void __launch_bounds__(256, 8)
transpose(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    __shared__ float tile[32 * 32];
    int tx = threadIdx.x, top = blockIdx.y * 32, left = blockIdx.x * 32;
#pragma unroll
    for (int i = threadIdx.y; i < 32; i += 8)
        if (top + i < rows && left + tx < cols) tile[i * 32 + (tx ^ i)] = x[(size_t)(top + i) * cols + left + tx];
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.y; i < 32; i += 8)
        if (left + i < cols && top + tx < rows) out[(size_t)(left + i) * rows + top + tx] = tile[tx * 32 + (i ^ tx)];
}
