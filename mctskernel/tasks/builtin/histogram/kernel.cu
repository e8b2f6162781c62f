/*
[[launch]]
kernel = "clear"
grid = [1]
block = ["BINS"]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["values", "counts", "n"]
*/
#define BINS 256
#define BLOCK 256

// One thread per bin.
extern "C" __global__ void clear(int* counts) {
    counts[threadIdx.x] = 0;
}

// One thread per value.
extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&counts[values[i]], 1);
    }
}
