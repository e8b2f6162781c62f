/*
[[launch]]
kernel = "quantise"
grid = ["rows"]
block = [128]
args = ["x", "codes", "scales", "cols"]
*/
// Two outputs; four codes travel as one word where the row is aligned. The largest magnitude is found among integers.
__device__ int code(float value, float factor) { return max(-127, min(127, __float2int_rn(value * factor))); }

extern "C" __global__ void quantise(const float* x, signed char* codes, float* scales, int cols) {
    __shared__ unsigned most;
    const float* from = x + (size_t)blockIdx.x * cols;
    signed char* to = codes + (size_t)blockIdx.x * cols;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    unsigned mine = 0;
    for (int i = threadIdx.x; i < cols; i += 128) mine = max(mine, __float_as_uint(from[i]) & 0x7fffffffu);
    mine = __reduce_max_sync(~0u, mine);
    if (threadIdx.x % 32 == 0) atomicMax(&most, mine);
    __syncthreads();
    float largest = __uint_as_float(most), factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    if (threadIdx.x == 0) scales[blockIdx.x] = largest / 127.0f;
    if (cols % 4 == 0) {
        for (int i = threadIdx.x; i < cols / 4; i += 128) {
            float4 four = reinterpret_cast<const float4*>(from)[i];
            reinterpret_cast<char4*>(to)[i] = make_char4(code(four.x, factor), code(four.y, factor), code(four.z, factor), code(four.w, factor));
        }
    } else {
        for (int i = threadIdx.x; i < cols; i += 128) to[i] = code(from[i], factor);
    }
}
