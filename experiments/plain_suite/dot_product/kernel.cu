/*
[[launch]]
kernel = "dot_blocks"
grid = ["BLOCKS"]
block = ["BLOCK"]
args = ["x", "y", "partial", "n"]

[[launch]]
kernel = "add_partials"
grid = [1]
block = [1]
args = ["partial", "out"]

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["BLOCKS"]
*/
#define BLOCK 256 // a power of two
#define BLOCKS 64

// Each thread takes every (BLOCKS * BLOCK)th product; a tree in shared memory adds them up in each block.
extern "C" __global__ void dot_blocks(const float* x, const float* y, float* partial, int n) {
    __shared__ float cache[BLOCK];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        sum += x[i] * y[i];
    }
    cache[threadIdx.x] = sum;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            cache[threadIdx.x] += cache[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = cache[0];
    }
}

// One thread adds what the blocks left.
extern "C" __global__ void add_partials(const float* partial, float* out) {
    float sum = 0.0f;
    for (int i = 0; i < BLOCKS; ++i) {
        sum += partial[i];
    }
    out[0] = sum;
}
