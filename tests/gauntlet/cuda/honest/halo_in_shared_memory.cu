/*
[[launch]]
kernel = "stencil"
grid = ["ceil_div(width, 32)", "ceil_div(height, 16)"]
block = [34, 18]
args = ["grid", "out", "height", "width", "center", "side"]
*/
// More threads than cells: the outermost only load the halo, and what is outside of the grid stays uninitialised and unread.
extern "C" __global__ void stencil(const float* grid, float* out, int height, int width, float center, float side) {
    __shared__ float tile[18][34];
    int tx = threadIdx.x, ty = threadIdx.y;
    int x = blockIdx.x * 32 + tx - 1, y = blockIdx.y * 16 + ty - 1;
    bool inside = x >= 0 && y >= 0 && x < width && y < height;
    if (inside) tile[ty][tx] = grid[y * width + x];
    __syncthreads();
    if (!inside || tx == 0 || ty == 0 || tx == 33 || ty == 17) return;
    float value = tile[ty][tx];
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1)
        value = center * value + side * (tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1]);
    out[y * width + x] = value;
}
