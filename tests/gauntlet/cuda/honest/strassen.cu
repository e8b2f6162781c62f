/*
[[launch]]
kernel = "products"
grid = ["ceil_div(ceil_div(N, 2), 16)", "ceil_div(ceil_div(M, 2), 16)", 7]
block = [16, 16]
args = ["a", "b", "products", "M", "N", "K"]

[[launch]]
kernel = "combine"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)"]
block = [16, 16]
args = ["products", "c", "M", "N"]

[[scratch]]
name = "products"
dtype = "float32"
shape = [7, "ceil_div(M, 2)", "ceil_div(N, 2)"]
*/
// One level of Strassen's algorithm: seven products of halves in place of eight.
__device__ float half_of(const float* x, int rows, int cols, int i, int j, int down, int right) {
    i += down * ((rows + 1) / 2), j += right * ((cols + 1) / 2);
    return i < rows && j < cols ? x[i * cols + j] : 0.0f;
}

__constant__ signed char LEFT[7][4] = {{1, 0, 0, 1}, {0, 0, 1, 1}, {1, 0, 0, 0}, {0, 0, 0, 1}, {1, 1, 0, 0}, {-1, 0, 1, 0}, {0, 1, 0, -1}};
__constant__ signed char RIGHT[7][4] = {{1, 0, 0, 1}, {1, 0, 0, 0}, {0, 1, 0, -1}, {-1, 0, 1, 0}, {0, 0, 0, 1}, {1, 1, 0, 0}, {0, 0, 1, 1}};
__constant__ signed char BACK[4][7] = {{1, 0, 0, 1, -1, 0, 1}, {0, 0, 1, 0, 1, 0, 0}, {0, 1, 0, 1, 0, 0, 0}, {1, -1, 1, 0, 0, 1, 0}};

__device__ float mixed(const float* x, const signed char* signs, int rows, int cols, int i, int j) {
    float sum = 0.0f;
    if (i >= (rows + 1) / 2 || j >= (cols + 1) / 2) return sum;
    for (int q = 0; q < 4; ++q)
        if (signs[q]) sum += signs[q] * half_of(x, rows, cols, i, j, q / 2, q % 2);
    return sum;
}

extern "C" __global__ void products(const float* a, const float* b, float* out, int M, int N, int K) {
    __shared__ float left[16][17], right[16][17];
    int tx = threadIdx.x, ty = threadIdx.y, p = blockIdx.z;
    int i = blockIdx.y * 16 + ty, j = blockIdx.x * 16 + tx, m = (M + 1) / 2, n = (N + 1) / 2, depth = (K + 1) / 2;
    float sum = 0.0f;
    for (int k = 0; k < depth; k += 16) {
        left[ty][tx] = mixed(a, LEFT[p], M, K, i, k + tx);
        right[ty][tx] = mixed(b, RIGHT[p], K, N, k + ty, j);
        __syncthreads();
        for (int e = 0; e < 16; ++e) sum += left[ty][e] * right[e][tx];
        __syncthreads();
    }
    if (i < m && j < n) out[(p * m + i) * n + j] = sum;
}

extern "C" __global__ void combine(const float* products, float* c, int M, int N) {
    int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x, m = (M + 1) / 2, n = (N + 1) / 2;
    if (i >= M || j >= N) return;
    const signed char* signs = BACK[i / m * 2 + j / n];
    float sum = 0.0f;
    for (int p = 0; p < 7; ++p)
        if (signs[p]) sum += signs[p] * products[(p * m + i % m) * n + j % n];
    c[i * N + j] = sum;
}
