/*
[[launch]]
kernel = "conv3x3"
grid = ["ceil_div(width, BLOCK_X)", "ceil_div(height, BLOCK_Y)", "images * filters"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["x", "weight", "out", "channels", "filters", "height", "width"]
*/
#include <cuda_bf16.h>

#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per output. x is images x channels x height x width, weight filters x channels x 3 x 3.
extern "C" __global__ void conv3x3(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out,
                                   int channels, int filters, int height, int width) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int image = blockIdx.z / filters;
    int filter = blockIdx.z % filters;
    if (row < height && col < width) {
        float sum = 0.0f;
        for (int channel = 0; channel < channels; ++channel) {
            for (int i = 0; i < 3; ++i) {
                for (int j = 0; j < 3; ++j) {
                    int y = row + i - 1;
                    int z = col + j - 1;
                    if (y >= 0 && y < height && z >= 0 && z < width) {
                        sum += __bfloat162float(x[((image * channels + channel) * height + y) * width + z]) *
                               __bfloat162float(weight[((filter * channels + channel) * 3 + i) * 3 + j]);
                    }
                }
            }
        }
        out[((image * filters + filter) * height + row) * width + col] = __float2bfloat16(sum);
    }
}
