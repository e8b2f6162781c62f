/*
[[launch]]
kernel = "quantise"
grid = ["ceil_div(rows, 128)"]
block = [128]
args = ["x", "codes", "scales", "rows", "cols"]
*/
extern "C" __global__ void quantise(const float* x, signed char* codes, float* scales, int rows, int cols) {
    int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    float largest = 0.0f;
    for (int i = 0; i < cols; ++i) largest = fmaxf(largest, fabsf(from[i]));
    float scale = largest / 127.0f;
    scales[row] = scale;
    for (int i = 0; i < cols; ++i)
        codes[(size_t)row * cols + i] =
            (signed char)fminf(127.0f, fmaxf(-127.0f, rintf(from[i] / (scale > 0.0f ? scale : 1.0f))));
}
