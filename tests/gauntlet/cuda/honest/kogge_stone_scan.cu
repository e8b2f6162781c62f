/*
[[launch]]
kernel = "cumsum"
grid = ["rows"]
block = ["BLOCK"]
args = ["x", "out", "cols"]
*/
#define BLOCK 128

// A block per row, piece after piece: a Kogge-Stone scan between two buffers of shared memory.
extern "C" __global__ void cumsum(const float* x, float* out, int cols) {
    __shared__ float tiles[2][BLOCK];
    size_t row = (size_t)blockIdx.x * cols;
    int t = threadIdx.x;
    float before = 0.0f;
    for (int start = 0; start < cols; start += BLOCK) {
        int from = 0;
        tiles[0][t] = start + t < cols ? x[row + start + t] : 0.0f;
        __syncthreads();
        for (int reach = 1; reach < BLOCK; reach *= 2, from ^= 1) {
            float sum = tiles[from][t];
            if (t >= reach) sum += tiles[from][t - reach];
            tiles[from ^ 1][t] = sum;
            __syncthreads();
        }
        if (start + t < cols) out[row + start + t] = before + tiles[from][t];
        before += tiles[from][BLOCK - 1];
        __syncthreads();
    }
}
