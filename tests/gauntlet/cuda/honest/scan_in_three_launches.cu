/*
[[launch]]
kernel = "sums_of_pieces"
grid = ["ceil_div(cols, PIECE)", "rows"]
block = [32]
args = ["x", "pieces", "cols"]

[[launch]]
kernel = "scan_of_pieces"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["pieces", "rows", "ceil_div(cols, PIECE)"]

[[launch]]
kernel = "scan"
grid = ["ceil_div(cols, PIECE)", "rows"]
block = [32]
args = ["x", "pieces", "out", "cols"]

[[scratch]]
name = "pieces"
dtype = "float32"
shape = ["rows", "ceil_div(cols, PIECE)"]
*/
#define PIECE 128

// Sums of pieces, their running sums in place, then each piece by a warp.
extern "C" __global__ void sums_of_pieces(const float* x, float* pieces, int cols) {
    float sum = 0.0f;
    int first = blockIdx.x * PIECE;
    for (int i = first + threadIdx.x; i < min(cols, first + PIECE); i += 32) sum += x[(size_t)blockIdx.y * cols + i];
    for (int s = 16; s; s >>= 1) sum += __shfl_down_sync(~0u, sum, s);
    if (threadIdx.x == 0) pieces[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

extern "C" __global__ void scan_of_pieces(float* pieces, int rows, int count) {
    int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    float before = 0.0f;
    for (int i = 0; i < count; ++i) {
        float sum = pieces[row * count + i];
        pieces[row * count + i] = before;
        before += sum;
    }
}

extern "C" __global__ void scan(const float* x, const float* pieces, float* out, int cols) {
    float before = pieces[blockIdx.y * gridDim.x + blockIdx.x];
    for (int i = blockIdx.x * PIECE + threadIdx.x, k = 0; k < PIECE; k += 32, i += 32) {
        float sum = i < cols ? x[(size_t)blockIdx.y * cols + i] : 0.0f;
        for (int s = 1; s < 32; s *= 2) {
            float left = __shfl_up_sync(~0u, sum, s);
            if (threadIdx.x >= s) sum += left;
        }
        if (i < cols) out[(size_t)blockIdx.y * cols + i] = before + sum;
        before += __shfl_sync(~0u, sum, 31);
    }
}
