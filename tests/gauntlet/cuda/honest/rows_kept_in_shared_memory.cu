/*
[[launch]]
kernel = "softmax"
grid = ["ceil_div(rows, 4)"]
block = [128]
shared = "16 * cols"
args = ["x", "out", "rows", "cols"]
*/
// Four rows in dynamic shared memory, 64 KB of it and more at the large shapes; fast exponentials.
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    extern __shared__ __align__(16) unsigned char bytes[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 4 + warp;
    float* mine = reinterpret_cast<float*>(bytes) + warp * cols;
    if (row >= rows) return;
    x += (size_t)row * cols, out += (size_t)row * cols;
    float largest = __int_as_float(0xff800000), sum = 0.0f;
    for (int i = lane; i < cols; i += 32) largest = fmaxf(largest, mine[i] = x[i]);
    for (int s = 16; s; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    for (int i = lane; i < cols; i += 32) sum += mine[i] = __expf(mine[i] - largest);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    float factor = __fdividef(1.0f, sum);
    for (int i = lane; i < cols; i += 32) out[i] = mine[i] * factor;
}
