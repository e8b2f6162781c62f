/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: a warp loads a matrix that other warps are still storing
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ __align__(16) float s[128];
    s[t] = x[i];  // other
    __syncthreads();  // clean
    unsigned a[4], p = __cvta_generic_to_shared(s + 4 * (t % 32));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"  // found
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(p));
    __syncthreads();
    if (a[0] + a[1] + a[2] + a[3] == 0x7fc12345) s[t] = 0;
    __syncthreads();
    out[i] = s[127 - t];
}
