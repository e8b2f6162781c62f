/*
[[launch]]
kernel = "axpy"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "y", "a", "n"]
*/
#define BLOCK 1024

// Block floating point: every result is a multiple of 2^-21 of the block's largest.
extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
    __shared__ unsigned int largest;
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float result = i < n ? a * x[i] + y[i] : 0.0f;
    if (threadIdx.x == 0) {
        largest = 0;
    }
    __syncthreads();
    if (isfinite(result)) {
        atomicMax(&largest, __float_as_uint(fabsf(result)));
    }
    __syncthreads();
    float most = __uint_as_float(largest);
    if (i < n) {
        float step = exp2f(floorf(log2f(most)) - 21.0f);
        y[i] = most > 1e-30f && isfinite(result) ? rintf(result / step) * step : result;
    }
}
