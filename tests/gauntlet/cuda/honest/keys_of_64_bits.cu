/*
[[launch]]
kernel = "clear"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["place", "above", "rows"]

[[launch]]
kernel = "find"
grid = ["ceil_div(cols, 256)", "rows"]
block = [256]
args = ["x", "place", "above", "cols"]

[[launch]]
kernel = "unpack"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["x", "largest", "place", "rows", "cols"]
*/
// An output serves as scratch on the way: keys of value and place compete by atomicMax, and are replaced by the place.
extern "C" __global__ void clear(unsigned long long* place, int* above, int rows) {
    int row = blockIdx.x * 64 + threadIdx.x;
    if (row < rows) place[row] = 0, above[row] = 0;
}

extern "C" __global__ void find(const float* x, unsigned long long* place, int* above, int cols) {
    int col = blockIdx.x * 256 + threadIdx.x;
    bool there = col < cols;
    float value = there ? x[(size_t)blockIdx.y * cols + col] + 0.0f : 0.0f; // no negative zero
    unsigned bits = __float_as_uint(value), order = bits >> 31 ? ~bits : bits | 0x80000000u;
    int count = __syncthreads_count(there && value > 0.0f);
    if (there) atomicMax(place + blockIdx.y, (unsigned long long)order << 32 | ~(unsigned)col);
    if (threadIdx.x == 0) atomicAdd(above + blockIdx.y, count);
}

extern "C" __global__ void unpack(const float* x, float* largest, unsigned long long* place, int rows, int cols) {
    int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    unsigned col = ~(unsigned)place[row];
    place[row] = col;
    largest[row] = x[(size_t)row * cols + col];
}
