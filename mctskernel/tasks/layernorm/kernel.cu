/*
[[launch]]
kernel = "layernorm"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "weight", "bias", "out", "rows", "cols", "eps"]
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out,
                                     int rows, int cols, float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += x[row * cols + col];
        }
        float mean = sum / cols;
        float squares = 0.0f;
        for (int col = 0; col < cols; ++col) {
            float centred = x[row * cols + col] - mean;
            squares += centred * centred;
        }
        float scale = rsqrtf(squares / cols + eps);
        for (int col = 0; col < cols; ++col) {
            out[row * cols + col] = (x[row * cols + col] - mean) * scale * weight[col] + bias[col];
        }
    }
}
