/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// out_of_bounds: the first thread writes before the array
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];  // clean
    s[t - 1] = x[i];  // bug found
    __syncthreads();
    out[i] = s[127 - t];  // clean
    out[i] = t == 127 ? x[i - 127] : s[126 - t];  // bug
}
