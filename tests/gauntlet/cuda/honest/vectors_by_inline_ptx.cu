/*
[[launch]]
kernel = "sum"
grid = [132]
block = [256]
args = ["x", "sums", "n"]

[[launch]]
kernel = "add_up"
grid = [1]
block = [32]
args = ["sums", "out"]

[[scratch]]
name = "sums"
dtype = "float32"
shape = [132]
*/
// Loads of four floats and additions by inline PTX with predicates; the tail by the last block alone.
__device__ __forceinline__ float4 load(const float* from) {
    float4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(from));
    return value;
}

template <int LANES>
__device__ __forceinline__ float across(float value) {
    if constexpr (LANES > 1) {
        value += __shfl_xor_sync(~0u, value, LANES / 2);
        return across<LANES / 2>(value);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(256) sum(const float* x, float* sums, int n) {
    __shared__ float warps[8];
    int fours = n / 4;
    float4 sum = {};
    for (int i = blockIdx.x * 256 + threadIdx.x; i < fours; i += gridDim.x * 256) {
        float4 value = load(x + 4 * i);
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    }
    float mine = (sum.x + sum.y) + (sum.z + sum.w);
    int tail = 4 * fours + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1)
        asm("{ .reg .pred there; .reg .f32 value; setp.lt.s32 there, %1, %2; mov.f32 value, 0f00000000;"
            "@there ld.global.f32 value, [%3]; add.f32 %0, %0, value; }"
            : "+f"(mine) : "r"(tail), "r"(n), "l"(x + tail) : "memory");
    mine = across<32>(mine);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = ((warps[0] + warps[1]) + (warps[2] + warps[3])) + ((warps[4] + warps[5]) + (warps[6] + warps[7]));
}

extern "C" __global__ void add_up(const float* sums, float* out) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < 132; i += 32) sum += sums[i];
    sum = across<32>(sum);
    if (threadIdx.x == 0) *out = sum;
}
