/*
[[launch]]
kernel = "stencil3d"
grid = ["ceil_div(width, BLOCK_X)", "ceil_div(height, BLOCK_Y)", "ceil_div(depth, BLOCK_Z)"]
block = ["BLOCK_X", "BLOCK_Y", "BLOCK_Z"]
args = ["box", "out", "depth", "height", "width", "center", "side"]
*/
#define BLOCK_X 8
#define BLOCK_Y 8
#define BLOCK_Z 8

// One thread per cell.
extern "C" __global__ void stencil3d(const float* box, float* out, int depth, int height, int width,
                                     float center, float side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x < width && y < height && z < depth) {
        int i = (z * height + y) * width + x;
        if (x == 0 || y == 0 || z == 0 || x == width - 1 || y == height - 1 || z == depth - 1) {
            out[i] = box[i];
        } else {
            float around = box[i - height * width] + box[i + height * width] + box[i - width] + box[i + width];
            out[i] = center * box[i] + side * (around + box[i - 1] + box[i + 1]);
        }
    }
}
