/*
[[launch]]
kernel = "clear"
grid = [1]
block = [1]
args = ["out"]

[[launch]]
kernel = "dot"
grid = ["min(132, ceil_div(n, 512))"]
block = [128]
args = ["x", "y", "out", "n"]
*/
// A float64 sum through a loop of compare and swap on its bits.
extern "C" __global__ void clear(double* out) { *out = 0.0; }

extern "C" __global__ void dot(const double* x, const double* y, double* out, int n) {
    double sum = 0.0;
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) sum = fma(x[i], y[i], sum);
    for (int s = 16; s; s >>= 1) sum += __shfl_down_sync(~0u, sum, s);
    if (threadIdx.x % 32) return;
    unsigned long long* word = reinterpret_cast<unsigned long long*>(out);
    unsigned long long seen = *(volatile unsigned long long*)word, assumed;
    do {
        assumed = seen;
        seen = atomicCAS(word, assumed, __double_as_longlong(__longlong_as_double(assumed) + sum));
    } while (seen != assumed);
}
