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
    for (int i = 0; i < n; i++) {
        if (i % 32 < 16 || t < 16)  // bug
        if (__any_sync(0xffffffff, x[i] != 0) && t == 0) sum += x[i];  // found
    }
    if (t == 0) out[0] = sum;
}
