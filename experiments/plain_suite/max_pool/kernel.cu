/*
[[launch]]
kernel = "max_pool"
grid = ["ceil_div(height, BLOCK_X)", "ceil_div(width, BLOCK_Y)", "images"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "out", "height", "width"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per output.
extern "C" __global__ void max_pool(const float* x, float* out, int height, int width) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    int image = blockIdx.z;
    if (row < height && col < width) {
        float largest = x[(image * 2 * height + 2 * row) * 2 * width + 2 * col];
        for (int i = 0; i < 2; ++i) {
            for (int j = 0; j < 2; ++j) {
                largest = fmaxf(largest, x[(image * 2 * height + 2 * row + i) * 2 * width + 2 * col + j]);
            }
        }
        out[(image * height + row) * width + col] = largest;
    }
}
