/*
[[launch]]
kernel = "clear"
grid = [1]
block = [256]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["values", "counts", "n"]
*/
extern "C" __global__ void clear(int* counts) { counts[threadIdx.x] = 0; }

extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) counts[values[i]] += 1;
}
