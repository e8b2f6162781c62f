/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, TILE)", "ceil_div(rows, TILE)"]
block = ["TILE", "TILE_ROWS"]
args = ["x", "out", "rows", "cols"]
*/
#define TILE 32
#define TILE_ROWS 8

// A block turns a tile of TILE x TILE elements, TILE_ROWS rows at a time.
extern "C" __global__ void transpose(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    const int col0 = (int)blockIdx.x * TILE;
    const int row0 = (int)blockIdx.y * TILE;
    #pragma unroll
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS) {
        const int row = row0 + i;
        const int col = col0 + threadIdx.x;
        if (row < rows && col < cols) {
            tile[i][threadIdx.x] = x[row * cols + col];
        }
    }
    __syncthreads();
    #pragma unroll
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS) {
        const int col = col0 + i;
        const int row = row0 + threadIdx.x;
        if (row < rows && col < cols) {
            out[col * rows + row] = tile[threadIdx.x][i];
        }
    }
}
