/*
[[launch]]
kernel = "sort_rows"
grid = ["rows"]
block = ["max(32, next_pow2(cols) // 2)"]
shared = "4 * max(64, next_pow2(cols))"
args = ["x", "out", "cols", "max(64, next_pow2(cols))"]
*/
// Batcher's bitonic network in shared memory, filled up with the largest number.
extern "C" __global__ void sort_rows(const int* x, int* out, int cols, int size) {
    extern __shared__ int row[];
    for (int i = threadIdx.x; i < size; i += blockDim.x) row[i] = i < cols ? x[(size_t)blockIdx.x * cols + i] : 0x7fffffff;
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step; step /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - (threadIdx.x & (step - 1)), j = i + step;
            int a = row[i], b = row[j];
            if ((a > b) == ((i & run) == 0)) row[i] = b, row[j] = a;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += blockDim.x) out[(size_t)blockIdx.x * cols + i] = row[i];
}
