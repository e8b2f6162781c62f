/*
[[launch]]
kernel = "transpose"
grid = [1056]
block = [32, 8]
args = ["x", "out", "next", "rows", "cols"]

[[scratch]]
name = "next"
dtype = "int32"
shape = [1]
zero = true
*/
// Blocks draw their tiles from a counter, so that nobody waits for a slow one.
extern "C" __global__ void transpose(const float* x, float* out, int* next, int rows, int cols) {
    __shared__ float tile[32][33];
    __shared__ int drawn;
    int tx = threadIdx.x, ty = threadIdx.y, across = (cols + 31) / 32, tiles = (rows + 31) / 32 * across;
    for (;;) {
        if (tx == 0 && ty == 0) drawn = atomicAdd(next, 1);
        __syncthreads();
        int top = drawn / across * 32, left = drawn % across * 32;
        if (drawn >= tiles) return;
        for (int i = ty; i < 32; i += 8)
            if (top + i < rows && left + tx < cols) tile[i][tx] = x[(size_t)(top + i) * cols + left + tx];
        __syncthreads();
        for (int i = ty; i < 32; i += 8)
            if (left + i < cols && top + tx < rows) out[(size_t)(left + i) * rows + top + tx] = tile[tx][i];
        __syncthreads();
    }
}
