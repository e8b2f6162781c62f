/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// out_of_bounds: an index runs from one shared array into its neighbour
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[64];
    __shared__ float r[64];
    if (t < 64) s[t] = x[i]; else r[t - 64] = x[i];
    __syncthreads();
    out[i] = t < 64 ? r[63 - t] : s[127 - t];  // clean
    out[i] = s[127 - t];  // bug found
}
