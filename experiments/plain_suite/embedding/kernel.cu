/*
[[launch]]
kernel = "embedding"
grid = ["ceil_div(tokens, BLOCK)"]
block = ["BLOCK"]
args = ["table", "token", "out", "tokens", "width"]
*/
#define BLOCK 256

// One thread per row that is looked up.
extern "C" __global__ void embedding(const float* table, const int* token, float* out, int tokens, int width) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < tokens) {
        for (int col = 0; col < width; ++col) {
            out[row * width + col] = table[token[row] * width + col];
        }
    }
}
