/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
shared = 512
args = ["x", "out"]
*/
// out_of_bounds: the kernel uses more dynamic shared memory than its launch has
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    extern __shared__ float s[];
    s[t] = x[i];  // clean
    s[t + 1] = x[i];  // bug found
    __syncthreads();
    out[i] = s[127 - t];  // clean
    out[i] = s[128 - t];  // bug
}
