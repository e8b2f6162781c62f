/*
[[launch]]
kernel = "k"
grid = [1]
block = [128]
args = ["x", "out", "rows"]
*/
// race: the pipeline leaves one group more in flight than it has to spare
extern "C" __global__ void k(const float* x, float* out, int rows) {
    int t = threadIdx.x;
    __shared__ float s[2][128];
    for (int row = -1; row < rows; row++) {
        if (row + 1 < rows) {
            unsigned p = __cvta_generic_to_shared(&s[(row + 1) & 1][t]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p), "l"(x + (row + 1) * 128 + t) : "memory");  // other
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (row < 0) continue;
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // clean
        asm volatile("cp.async.wait_group 2;" ::: "memory");  // bug
        __syncthreads();
        out[row * 128 + t] = s[row & 1][127 - t];  // found
        __syncthreads();
    }
}
