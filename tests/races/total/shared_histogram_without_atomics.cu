/*
[[launch]]
kernel = "k"
grid = [1]
block = [128]
args = ["x", "out", "n"]
*/
// race: threads count into shared bins without atomics
extern "C" __global__ void k(const int* x, int* out, int n) {
    __shared__ int bins[16];
    int t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    __syncthreads();
    for (int i = t; i < n; i += 128) atomicAdd(&bins[x[i] & 15], 1);  // clean
    for (int i = t; i < n; i += 128) bins[x[i] & 15] += 1;  // bug found
    __syncthreads();
    if (t == 0) {
        int sum = 0;
        for (int b = 0; b < 16; b++) sum += b * bins[b];
        out[0] = sum;
    }
}
