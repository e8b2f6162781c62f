/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// misaligned: rows of a matrix load begin between multiples of 16 bytes
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ __align__(16) float s[160];
    s[t] = x[i];
    if (t < 32) s[128 + t] = 0;
    __syncthreads();
    if (t < 32) {
        unsigned a, p = __cvta_generic_to_shared(s + 4 * (t % 8));  // clean
        unsigned a, p = __cvta_generic_to_shared(s + 4 * (t % 8) + 2);  // bug
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(p));  // found
        if (a == 0x7fc12345) s[0] = 0;
    }
    __syncthreads();
    out[i] = s[127 - t];
}
