/*
[[launch]]
kernel = "conv2d"
grid = ["ceil_div(width, BLOCK_X)", "ceil_div(height, BLOCK_Y)", "images"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "weights", "out", "height", "width", "size"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per output.
extern "C" __global__ void conv2d(const float* x, const float* weights, float* out, int height, int width,
                                  int size) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int image = blockIdx.z;
    if (row < height && col < width) {
        float sum = 0.0f;
        for (int i = 0; i < size; ++i) {
            for (int j = 0; j < size; ++j) {
                int y = row + i - size / 2;
                int z = col + j - size / 2;
                if (y >= 0 && y < height && z >= 0 && z < width) {
                    sum += weights[i * size + j] * x[(image * height + y) * width + z];
                }
            }
        }
        out[(image * height + row) * width + col] = sum;
    }
}
