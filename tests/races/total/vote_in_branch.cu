/*
[[launch]]
kernel = "k"
grid = [1]
block = [32]
args = ["x", "out", "n"]
*/
// divergent_warp: a vote names lanes that have gone another way
extern "C" __global__ void k(const int* x, int* out, int n) {
    int t = threadIdx.x, sum = 0;
    for (int i = t; i < n; i += 32) sum += x[i];
    unsigned many = 0;
    if (t < 16)  // bug
    many = __ballot_sync(0xffffffff, sum >= 0);  // found
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    if (t == 0) out[0] = many ? sum : 0;
}
