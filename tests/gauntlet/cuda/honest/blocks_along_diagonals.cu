/*
[[launch]]
kernel = "transpose"
grid = ["ceil_div(rows, 16) * ceil_div(cols, 16)", 1, 2]
block = [16, 4, 2]
args = ["x", "out", "rows", "cols"]
*/
// Blocks of three dimensions take half tiles along diagonals, the last ones first; numbers travel as whole words.
extern "C" __global__ void transpose(const unsigned* x, unsigned* out, int rows, int cols) {
    __shared__ unsigned tile[2][8][17];
    int down = (rows + 15) / 16, across = (cols + 15) / 16, block = gridDim.x - 1 - blockIdx.x;
    int j = block / down, i = (block % down + j) % down, z = threadIdx.z;
    int top = i * 16 + blockIdx.z * 8, left = j * 16, tx = threadIdx.x, ty = threadIdx.y;
    (void)across;
    int row = top + ty + z * 4;
    if (row < rows && left + tx < cols) tile[z][ty][tx] = x[(size_t)row * cols + left + tx];
    __syncthreads();
    int t = (z * 4 + ty) * 16 + tx, r = t % 8, c = t / 8;
    if (top + r < rows && left + c < cols) out[(size_t)(left + c) * rows + top + r] = tile[r / 4][r % 4][c];
}
