/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [256]
args = ["x", "out", "rows", "cols"]
*/
__device__ __forceinline__ float all(float v, float* s, bool largest) {
    s[threadIdx.x] = v;
    __syncthreads();
    for (int k = 128; k; k >>= 1) {
        if (threadIdx.x < k) {
            float other = s[threadIdx.x + k];
            s[threadIdx.x] = largest ? fmaxf(s[threadIdx.x], other) : s[threadIdx.x] + other;
        }
        __syncthreads();
    }
    v = s[0];
    __syncthreads();
    return v;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    __shared__ float s[8 * 1056];
    int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    volatile float* mine = s + warp * 1056 + lane * (clock64() > 1 << 30 ? 32 : 1);
    const float* from = x + (size_t)row * cols;
    *mine = -3.4e38f;
    for (int c = threadIdx.x; c < cols; c += 256) *mine = fmaxf(*mine, from[c]);
    float m = *mine;
    __syncthreads();
    m = all(m, s, true);
    *mine = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 256)
        for (int k = 0; k < 8; ++k) *mine = *mine + expf(from[c] - m) * 0.125f;
    float t = *mine;
    __syncthreads();
    t = all(t, s, false);
    for (int c = threadIdx.x; c < cols; c += 256) out[(size_t)row * cols + c] = expf(from[c] - m) / t;
}
