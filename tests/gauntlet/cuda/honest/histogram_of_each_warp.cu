/*
[[launch]]
kernel = "clear"
grid = [1]
block = [256]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["min(ceil_div(n, 4096), 264)"]
block = [256]
args = ["values", "counts", "n"]
*/
// Bins of its own for each warp, in shared memory, then one addition for each bin that is not empty.
extern "C" __global__ void clear(int* counts) { counts[threadIdx.x] = 0; }

extern "C" __global__ void histogram(const unsigned char* values, int* counts, int n) {
    __shared__ unsigned bins[8][256];
    for (int i = threadIdx.x; i < 8 * 256; i += 256) bins[0][i] = 0;
    __syncthreads();
    unsigned* mine = bins[threadIdx.x / 32];
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) atomicAdd(mine + values[i], 1u);
    __syncthreads();
    unsigned total = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) total += bins[w][threadIdx.x];
    if (total) atomicAdd(counts + threadIdx.x, (int)total);
}
