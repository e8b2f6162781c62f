/*
[[launch]]
kernel = "k"
grid = [1]
block = [128]
args = ["x", "out", "n"]
*/
extern "C" __global__ void k(const int* x, int* out, int n) {
    __shared__ int s[128];
    int sum = 0;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[i];
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 64; o; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = s[0];
}
