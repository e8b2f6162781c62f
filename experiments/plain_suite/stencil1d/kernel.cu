/*
[[launch]]
kernel = "stencil1d"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["line", "out", "n"]
*/
#define BLOCK 128
#define RADIUS 3

// One thread per cell.
extern "C" __global__ void stencil1d(const float* line, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        if (i < RADIUS || i >= n - RADIUS) {
            out[i] = line[i];
        } else {
            float sum = 0.0f;
            for (int shift = -RADIUS; shift <= RADIUS; ++shift) {
                sum += line[i + shift];
            }
            out[i] = sum / (2 * RADIUS + 1);
        }
    }
}
