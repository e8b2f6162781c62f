/*
[[launch]]
kernel = "statistics"
grid = ["ceil_div(rows, 8)"]
block = [256]
args = ["x", "statistics", "rows", "cols"]

[[launch]]
kernel = "normalise"
grid = ["ceil_div(cols, 96)", "rows"]
block = [96]
args = ["x", "statistics", "out", "cols"]

[[scratch]]
name = "statistics"
dtype = "float32"
shape = ["rows", 2]
*/
// The statistics in scratch, as float2; then one thread per element, in blocks of 96.
extern "C" __global__ void statistics(const float* x, float2* statistics, int rows, int cols) {
    int row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    float largest = from[0], sum = 0.0f;
    for (int i = threadIdx.x % 32; i < cols; i += 32) largest = fmaxf(largest, from[i]);
    for (int s = 16; s; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    for (int i = threadIdx.x % 32; i < cols; i += 32) sum += expf(from[i] - largest);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) statistics[row] = make_float2(largest, sum);
}

extern "C" __global__ void normalise(const float* x, const float2* statistics, float* out, int cols) {
    int col = blockIdx.x * 96 + threadIdx.x;
    if (col >= cols) return;
    float2 of = statistics[blockIdx.y];
    size_t i = (size_t)blockIdx.y * cols + col;
    out[i] = expf(x[i] - of.x) / of.y;
}
