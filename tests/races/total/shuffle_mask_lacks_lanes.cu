/*
[[launch]]
kernel = "k"
grid = [1]
block = [32]
args = ["x", "out", "n"]
*/
// divergent_warp: all lanes execute a shuffle whose mask names half of them
extern "C" __global__ void k(const int* x, int* out, int n) {
    int t = threadIdx.x, sum = 0;
    for (int i = t; i < n; i += 32) sum += x[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 16);  // clean
    sum += __shfl_xor_sync(0x0000ffff, sum, 16);  // bug found
    for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    if (t == 0) out[0] = sum;
}
