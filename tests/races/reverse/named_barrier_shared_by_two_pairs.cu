/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// divergent_barrier: two pairs of warps use one barrier of 64 threads, so that any two warps pass
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];
    float v = 0;
    if (t < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");  // found
        v = s[t ^ 63];
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");  // bug other
        asm volatile("bar.sync 2, 64;" ::: "memory");  // clean
        v = s[t ^ 63];
    }
    __syncthreads();
    s[t] = v;
    __syncthreads();
    out[i] = s[t ^ 64];
}
