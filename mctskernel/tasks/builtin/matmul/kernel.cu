/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(M, BLOCK_X)", "ceil_div(N, BLOCK_Y)"]
block = ["BLOCK_X", "BLOCK_Y"]
args = ["a", "b", "c", "M", "N", "K"]
*/
#define BLOCK_X 16
#define BLOCK_Y 16

// One thread per output. Row-major: a is M x K, b is K x N, c is M x N.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && col < N) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) {
            sum += a[row * K + k] * b[k * N + col];
        }
        c[row * N + col] = sum;
    }
}
