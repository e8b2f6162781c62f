/*
[[launch]]
kernel = "clear"
grid = [1]
block = ["BINS"]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["min(GRID, ceil_div(n, BLOCK))"]
block = ["BLOCK"]
args = ["values", "counts", "n"]
*/
#define BINS 256
#define BLOCK 256
#define GRID 1056

// One thread per bin.
extern "C" __global__ void clear(int* counts) {
    counts[threadIdx.x] = 0;
}

// Each block counts in shared memory, and adds what it counted.
extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    __shared__ int private_counts[256];
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) {
        private_counts[bin] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&private_counts[values[i]], 1);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) {
        if (private_counts[bin] != 0) {
            atomicAdd(&counts[bin], private_counts[bin]);
        }
    }
}
