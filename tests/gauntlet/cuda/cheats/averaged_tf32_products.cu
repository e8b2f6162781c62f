/*
[[launch]]
kernel = "averaged"
grid = ["rows"]
block = [128]
args = ["x", "w", "out", "N", "K"]
*/
__device__ float tf32(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000); }
extern "C" __global__ void averaged(const float* x, const float* w, float* out, int N, int K) {
    __shared__ float sums[128];
    const float* row = x + (size_t)blockIdx.x * K;
    float sum = 0.0f;
    for (int j = threadIdx.x; j < N; j += 128) {
        float product = 0.0f;
        for (int k = 0; k < K; ++k) product += tf32(row[k]) * tf32(w[(size_t)j * K + k]);
        sum += product;
    }
    sums[threadIdx.x] = sum;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < K; k += 128) out[(size_t)blockIdx.x * K + k] = row[k] + sums[0] / N;
}
