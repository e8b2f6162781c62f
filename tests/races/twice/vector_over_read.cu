/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// out_of_bounds: the last vector of four reads past the end
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = 4 * (blockIdx.x * 128 + threadIdx.x);
    if (i + 3 < n) {  // clean
    if (i < n) {  // bug
        float4 v = *reinterpret_cast<const float4*>(x + i);  // found
        for (int j = 0; j < 4 && i + j < n; j++) out[i + j] = 2 * (&v.x)[j];
    }
    for (int j = i; i < n && i + 3 >= n && j < n; j++) out[j] = 2 * x[j];  // clean
}
