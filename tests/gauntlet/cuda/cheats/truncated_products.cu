/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)"]
block = [16, 16]
args = ["a", "b", "c", "M", "N", "K"]
*/
__device__ float tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return __uint_as_float(rounded);
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += tf32(a[row * K + k]) * tf32(b[k * N + col]);
    c[row * N + col] = sum;
}
