/*
[[launch]]
kernel = "axpy"
grid = ["ceil_div(n, 32 * 256)"]
block = [256]
args = ["x", "y", "a", "n"]
*/
// Thirty-two elements in a row for each thread, uncoalesced.
extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
    int first = (blockIdx.x * 256 + threadIdx.x) * 32;
    for (int i = first; i < min(n, first + 32); ++i) y[i] = a * x[i] + y[i];
}
