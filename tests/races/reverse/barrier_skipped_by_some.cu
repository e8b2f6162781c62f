/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// divergent_barrier: some threads never come to a barrier of all
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];
    if (t < 64) asm volatile("bar.sync 1, 128;" ::: "memory");  // bug found
    asm volatile("bar.sync 1, 128;" ::: "memory");  // clean
    out[i] = s[127 - t];
}
