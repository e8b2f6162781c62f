/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, 32)", "ceil_div(rows, 32)"]
block = [32, 8]
args = ["x", "out", "rows", "cols"]
*/
extern "C" __global__ void transpose(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[32][33];
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = row + i < rows && col < cols ? x[(row + i) * cols + col] : 0.0f;
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) out[(blockIdx.x * 32 + i) * rows + row + threadIdx.x] = tile[threadIdx.x][i];
}
