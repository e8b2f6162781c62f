/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: each thread waits for its own copy and reads another's
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    unsigned p = __cvta_generic_to_shared(s + t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p), "l"(x + i) : "memory");  // other
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // clean
    out[i] = s[127 - t];  // found
}
