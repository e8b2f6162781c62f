/*
[[launch]]
kernel = "sum_blocks"
grid = ["min(BLOCKS, ceil_div(n, BLOCK))"]
block = ["BLOCK"]
args = ["x", "partial", "n"]

[[launch]]
kernel = "sum_partials"
grid = [1]
block = ["BLOCK"]
args = ["partial", "out", "min(BLOCKS, ceil_div(n, BLOCK))"]

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["min(BLOCKS, ceil_div(n, BLOCK))"]
*/
#define BLOCK 256 // a power of two
#define BLOCKS 1056

// Each thread gathers a share of the elements, then each of BLOCKS blocks reduces its threads' shares.
extern "C" __global__ void sum_blocks(const float* x, float* partial, int n) {
    __shared__ float tile[BLOCK];
    int tid = threadIdx.x;
    float total = 0.0f;
    for (int i = blockIdx.x * BLOCK + tid; i < n; i += gridDim.x * BLOCK) {
        total += x[i];
    }
    tile[tid] = total;
    __syncthreads();
    for (int stride = 1; stride < BLOCK; stride *= 2) {
        if (tid % (2 * stride) == 0) {
            tile[tid] += tile[tid + stride];
        }
        __syncthreads();
    }
    if (tid == 0) {
        partial[blockIdx.x] = tile[0];
    }
}

// One block adds what the others left.
extern "C" __global__ void sum_partials(const float* partial, float* out, int count) {
    __shared__ float tile[BLOCK];
    int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < count; i += BLOCK) {
        sum += partial[i];
    }
    tile[tid] = sum;
    __syncthreads();
    for (int stride = 1; stride < BLOCK; stride *= 2) {
        if (tid % (2 * stride) == 0) {
            tile[tid] += tile[tid + stride];
        }
        __syncthreads();
    }
    if (tid == 0) {
        out[0] = tile[0];
    }
}
