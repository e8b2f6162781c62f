/*
[[launch]]
kernel = "partial_sums"
grid = ["GRID"]
block = ["BLOCK"]
args = ["x", "high", "low", "n"]

[[launch]]
kernel = "finish"
grid = [1]
block = [33]
args = ["high", "low", "out", "GRID"]

[[scratch]]
name = "high"
dtype = "float32"
shape = ["GRID"]

[[scratch]]
name = "low"
dtype = "float32"
shape = ["GRID"]
*/
#define GRID 333
#define BLOCK 96 // no power of two

// Kahan's summation with Neumaier's branch, whose errors are carried from thread to thread and from launch to launch.
struct Pair {
    float sum, error;
    __device__ void add(float value) {
        volatile float next = sum + value;
        error += fabsf(sum) >= fabsf(value) ? (sum - next) + value : (value - next) + sum;
        sum = next;
    }
};

extern "C" __global__ void partial_sums(const float* x, float* high, float* low, int n) {
    __shared__ Pair pairs[BLOCK];
    Pair pair = {0.0f, 0.0f};
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += GRID * BLOCK) pair.add(x[i]);
    pairs[threadIdx.x] = pair;
    __syncthreads();
    for (int count = BLOCK; count > 1;) {
        int half = (count + 1) / 2;
        if (threadIdx.x + half < count) {
            Pair other = pairs[threadIdx.x + half], own = pairs[threadIdx.x];
            own.add(other.sum);
            own.error += other.error;
            pairs[threadIdx.x] = own;
        }
        count = half;
        __syncthreads();
    }
    if (threadIdx.x == 0) high[blockIdx.x] = pairs[0].sum, low[blockIdx.x] = pairs[0].error;
}

extern "C" __global__ void finish(const float* high, const float* low, float* out, int count) {
    __shared__ Pair pairs[33];
    Pair pair = {0.0f, 0.0f};
    for (int i = threadIdx.x; i < count; i += 33) pair.add(high[i]), pair.error += low[i];
    pairs[threadIdx.x] = pair;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 33; ++i) pair.add(pairs[i].sum), pair.error += pairs[i].error;
    // An infinity has no error to speak of.
    *out = isfinite(pair.sum) ? pair.sum + pair.error : pair.sum;
}
