/*
[[launch]]
kernel = "axpy"
grid = ["min(528, ceil_div(n, 1024))"]
block = [256]
args = ["x", "y", "a", "n"]
*/
// Reads and writes the same buffer, four elements at a time, with a tail.
extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
    int first = blockIdx.x * 256 + threadIdx.x;
    for (int i = first; i < n / 4; i += gridDim.x * 256) {
        float4 by = reinterpret_cast<const float4*>(x)[i], to = reinterpret_cast<float4*>(y)[i];
        to.x = fmaf(a, by.x, to.x), to.y = fmaf(a, by.y, to.y), to.z = fmaf(a, by.z, to.z), to.w = fmaf(a, by.w, to.w);
        reinterpret_cast<float4*>(y)[i] = to;
    }
    if (first < n % 4) y[n / 4 * 4 + first] += a * x[n / 4 * 4 + first];
}
