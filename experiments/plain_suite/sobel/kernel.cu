/*
[[launch]]
kernel = "sobel"
grid = ["ceil_div(width, BLOCK_X)", "ceil_div(height, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["image", "edges", "height", "width"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per pixel.
extern "C" __global__ void sobel(const float* image, float* edges, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        int i = y * width + x;
        if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
            edges[i] = 0.0f;
        } else {
            float across = image[i - width + 1] - image[i - width - 1] + 2.0f * image[i + 1] -
                           2.0f * image[i - 1] + image[i + width + 1] - image[i + width - 1];
            float below = image[i + width - 1] - image[i - width - 1] + 2.0f * image[i + width] -
                          2.0f * image[i - width] + image[i + width + 1] - image[i - width + 1];
            edges[i] = sqrtf(across * across + below * below);
        }
    }
}
