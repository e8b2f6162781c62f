/*
[[launch]]
kernel = "outliers"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "far", "limit", "n"]
*/
extern "C" __global__ void outliers(const float* x, bool* far, float limit, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) far[i] = i > 0 && fabsf(x[i] - x[i - 1]) > limit;
}
