/*
[[launch]]
kernel = "dot"
grid = [1]
block = [256]
args = ["x", "y", "out", "n"]
*/
extern "C" __global__ void dot(const double* x, const double* y, double* out, int n) {
    __shared__ double sums[256];
    double sum = 0.0;
    for (int i = threadIdx.x; i < n; i += 256) sum += x[i] * y[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = sums[0];
}
