/*
[[launch]]
kernel = "find"
grid = ["ceil_div(cols, 1024)", "rows"]
block = [256]
args = ["x", "largest", "cols"]

[[launch]]
kernel = "add"
grid = ["ceil_div(cols, 1024)", "rows"]
block = [256]
args = ["x", "largest", "sums", "out", "cols"]

[[launch]]
kernel = "divide"
grid = ["ceil_div(cols, 1024)", "rows"]
block = [256]
args = ["sums", "out", "cols"]

[[scratch]]
name = "largest"
dtype = "uint32"
shape = ["rows"]
zero = true

[[scratch]]
name = "sums"
dtype = "float32"
shape = ["rows"]
zero = true
*/
// Floats whose bits are turned so that they compare as unsigned numbers, which atomicMax knows; zero is below all of them.
// The output is written, read again by the next launch, and written once more.
__device__ unsigned ordered(float value) {
    unsigned bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ float value_of(unsigned order) {
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

extern "C" __global__ void find(const float* x, unsigned* largest, int cols) {
    unsigned most = 0;
    for (int i = blockIdx.x * 1024 + threadIdx.x, k = 0; k < 4 && i < cols; ++k, i += 256)
        most = max(most, ordered(x[(size_t)blockIdx.y * cols + i]));
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0 && most) atomicMax(largest + blockIdx.y, most);
}

extern "C" __global__ void add(const float* x, const unsigned* largest, float* sums, float* out, int cols) {
    float top = value_of(largest[blockIdx.y]), sum = 0.0f;
    for (int i = blockIdx.x * 1024 + threadIdx.x, k = 0; k < 4 && i < cols; ++k, i += 256) {
        float e = expf(x[(size_t)blockIdx.y * cols + i] - top);
        out[(size_t)blockIdx.y * cols + i] = e;
        sum += e;
    }
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.y, sum);
}

extern "C" __global__ void divide(const float* sums, float* out, int cols) {
    for (int i = blockIdx.x * 1024 + threadIdx.x, k = 0; k < 4 && i < cols; ++k, i += 256)
        out[(size_t)blockIdx.y * cols + i] /= sums[blockIdx.y];
}
