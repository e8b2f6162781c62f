/*
[[launch]]
kernel = "k"
grid = [1]
block = [128]
args = ["x", "out", "n"]
*/
// race: the last steps of a reduction rely on volatile in place of __syncwarp
extern "C" __global__ void k(const int* x, int* out, int n) {
    __shared__ volatile int s[128];
    int t = threadIdx.x, sum = 0;
    for (int i = t; i < n; i += 128) sum += x[i];
    s[t] = sum;
    __syncthreads();
    if (t < 64) s[t] += s[t + 64];
    __syncthreads();
    if (t < 32) {
        int v = s[t] + s[t + 32];
        s[t] = v;
        __syncwarp();  // clean
        v += s[t + 16];  // found
        __syncwarp();  // clean
        s[t] = v;
        __syncwarp();  // clean
        v += s[t + 8];
        __syncwarp();  // clean
        s[t] = v;
        __syncwarp();  // clean
        if (t == 0) {
            for (int j = 1; j < 8; j++) v += s[j];
            out[0] = v;
        }
    }
}
