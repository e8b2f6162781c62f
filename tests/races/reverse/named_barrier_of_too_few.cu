/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: a named barrier lets pairs of warps go that don't exchange anything
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];  // other
    asm volatile("bar.sync %0, 64;" :: "r"(1 + t / 64) : "memory");  // bug
    asm volatile("bar.sync 1, 128;" ::: "memory");  // clean
    out[i] = s[127 - t];  // found
}
