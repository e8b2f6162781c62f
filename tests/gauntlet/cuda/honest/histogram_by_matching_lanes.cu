/*
[[launch]]
kernel = "clear"
grid = [4]
block = [64]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["min(ceil_div(n, 2048), 1056)"]
block = [128]
args = ["values", "counts", "n"]
*/
// Lanes that hold the same byte elect one of them, which adds for all: __match_any_sync under a partial mask.
extern "C" __global__ void clear(int* counts) { counts[blockIdx.x * 64 + threadIdx.x] = 0; }

extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    __shared__ int bins[256];
    for (int i = threadIdx.x; i < 256; i += 128) bins[i] = 0;
    __syncthreads();
    int lane = threadIdx.x & 31;
    for (int first = blockIdx.x * 128 + (threadIdx.x & ~31); first < n; first += gridDim.x * 128) {
        unsigned there = __ballot_sync(~0u, first + lane < n);
        if (first + lane < n) {
            int value = values[first + lane];
            unsigned peers = __match_any_sync(there, value);
            if (__ffs(peers) - 1 == lane) atomicAdd(bins + value, __popc(peers));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 128)
        if (bins[i]) atomicAdd(counts + i, bins[i]);
}
