/*
[[launch]]
kernel = "stencil"
grid = ["ceil_div(width, BLOCK_X * 4)", "ceil_div(height, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["grid", "out", "height", "width", "center", "side"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// Whether 16 bytes may be read or written there at once.
__device__ bool is_aligned(const void* address) {
    return reinterpret_cast<size_t>(address) % 16 == 0;
}

// One thread per cell.
extern "C" __global__ void stencil(const float* grid, float* out, int height, int width, float center,
                                   float side) {
    int x = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        if (width - x >= 4
            && !(x == 0 || y == 0 || x == width - 1 || y == height - 1)
            && !((x + 1) == 0 || y == 0 || (x + 1) == width - 1 || y == height - 1)
            && !((x + 2) == 0 || y == 0 || (x + 2) == width - 1 || y == height - 1)
            && !((x + 3) == 0 || y == 0 || (x + 3) == width - 1 || y == height - 1)
            && is_aligned(&grid[(y * width + x) - width])
            && is_aligned(&grid[(y * width + x) + width])
            && is_aligned(&grid[y * width + x])
            && is_aligned(&out[y * width + x])) {
            alignas(16) float grid_line[3 * 4];
            *reinterpret_cast<float4*>(grid_line + 4) = *reinterpret_cast<const float4*>(&grid[(y * width + x) - width]);
            alignas(16) float grid_line2[3 * 4];
            *reinterpret_cast<float4*>(grid_line2 + 4) = *reinterpret_cast<const float4*>(&grid[(y * width + x) + width]);
            alignas(16) float grid_line3[3 * 4];
            *reinterpret_cast<float4*>(grid_line3 + 4) = *reinterpret_cast<const float4*>(&grid[y * width + x]);
            grid_line3[3] = grid[y * width + x - 1];
            grid_line3[8] = grid[y * width + x + 4];
            alignas(16) float out_line[3 * 4];
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
                int i = y * width + (x + lane);
                float around = grid_line[lane + 4] + grid_line2[lane + 4] + grid_line3[lane + 3] + grid_line3[lane + 5];
                out_line[lane + 4] = center * grid_line3[lane + 4] + side * around;
            }
            *reinterpret_cast<float4*>(&out[y * width + x]) = *reinterpret_cast<const float4*>(out_line + 4);
        } else {
            for (int lane = 0; lane < 4 && lane < width - x; ++lane) {
                int i = y * width + (x + lane);
                if ((x + lane) == 0 || y == 0 || (x + lane) == width - 1 || y == height - 1) {
                    out[i] = grid[i];
                } else {
                    float around = grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1];
                    out[i] = center * grid[i] + side * around;
                }
            }
        }
    }
}
