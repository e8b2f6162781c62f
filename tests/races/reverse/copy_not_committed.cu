/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: an asynchronous copy belongs to no group that is waited for
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    unsigned p = __cvta_generic_to_shared(s + t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p), "l"(x + i) : "memory");  // other
    asm volatile("cp.async.commit_group;" ::: "memory");  // clean
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[i] = s[127 - t];  // found
}
