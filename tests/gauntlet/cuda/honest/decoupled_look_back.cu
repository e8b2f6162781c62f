/*
[[launch]]
kernel = "cumsum"
grid = ["ceil_div(cols, PIECE) * rows"]
block = [128]
args = ["x", "out", "state", "drawn", "cols", "ceil_div(cols, PIECE)"]

[[scratch]]
name = "state"
dtype = "uint64"
shape = ["rows", "ceil_div(cols, PIECE)"]
zero = true

[[scratch]]
name = "drawn"
dtype = "int32"
shape = [1]
zero = true
*/
#define PIECE 512

// Merrill and Garland's scan in one launch: a block draws its piece, publishes its sum, and looks back for what is before.
__device__ unsigned long long word(unsigned ready, float value) {
    return (unsigned long long)ready << 32 | __float_as_uint(value);
}

extern "C" __global__ void cumsum(const float* x, float* out, unsigned long long* state, int* drawn, int cols, int pieces) {
    __shared__ float warps[4];
    __shared__ float prefix;
    __shared__ int ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(drawn, 1);
    __syncthreads();
    int row = ticket / pieces, piece = ticket % pieces, first = piece * PIECE + threadIdx.x * 4;
    const float* from = x + (size_t)row * cols;
    float own[4], sum = 0.0f;
    for (int i = 0; i < 4; ++i) own[i] = sum += first + i < cols ? from[first + i] : 0.0f;
    float through = sum;
    for (int s = 1; s < 32; s *= 2) {
        float left = __shfl_up_sync(~0u, through, s);
        if (threadIdx.x % 32 >= s) through += left;
    }
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = through;
    __syncthreads();
    // Not `through - sum`: a NaN here must not reach the columns to its left.
    float before = __shfl_up_sync(~0u, through, 1), all = 0.0f;
    if (threadIdx.x % 32 == 0) before = 0.0f;
    for (int w = 0; w < 4; ++w) {
        if (w < threadIdx.x / 32) before += warps[w];
        all += warps[w];
    }
    if (threadIdx.x == 0) {
        unsigned long long* mine = state + (size_t)row * pieces;
        float found = 0.0f;
        if (piece > 0) {
            atomicExch(mine + piece, word(1, all));
            for (int back = piece - 1;;) {
                unsigned long long seen = atomicAdd(mine + back, 0ull);
                if (seen >> 32 == 0) continue;
                found += __uint_as_float((unsigned)seen);
                if (seen >> 32 == 2) break;
                --back;
            }
        }
        atomicExch(mine + piece, word(2, found + all));
        prefix = found;
    }
    __syncthreads();
    for (int i = 0; i < 4; ++i)
        if (first + i < cols) out[(size_t)row * cols + first + i] = prefix + before + own[i];
}
