/*
[[launch]]
kernel = "k"
grid = [1]
block = [32]
args = ["x", "out", "n"]
*/
// divergent_warp: a shuffle names lanes that have gone another way
extern "C" __global__ void k(const int* x, int* out, int n) {
    int t = threadIdx.x, sum = 0;
    for (int i = t; i < n; i += 32) sum += x[i];
    if (t < 16)  // bug
    sum += __shfl_xor_sync(0xffffffff, sum, 16);  // found
    for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    if (t == 0) out[0] = sum;
}
