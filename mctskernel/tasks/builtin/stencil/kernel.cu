/*
[[launch]]
kernel = "stencil"
grid = ["ceil_div(width, BLOCK_X)", "ceil_div(height, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["grid", "out", "height", "width", "center", "side"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per cell.
extern "C" __global__ void stencil(const float* grid, float* out, int height, int width, float center,
                                   float side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        int i = y * width + x;
        if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
            out[i] = grid[i];
        } else {
            float around = grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1];
            out[i] = center * grid[i] + side * around;
        }
    }
}
