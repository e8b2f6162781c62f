/*
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 32)", "ceil_div(M, 32)", "PARTS"]
block = [32, 8]
args = ["a", "b", "c", "parts", "arrived", "M", "N", "K"]

[[scratch]]
name = "parts"
dtype = "float32"
shape = ["PARTS", "ceil_div(M, 32)", "ceil_div(N, 32)", 1024]

[[scratch]]
name = "arrived"
dtype = "uint32"
shape = ["ceil_div(M, 32)", "ceil_div(N, 32)"]
zero = true
*/
#define PARTS 2

// K is split over blocks; the last block at a tile, by its semaphore, adds up the parts in order.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, float* parts, unsigned* arrived, int M,
                                  int N, int K) {
    __shared__ float left[32][33], right[32][32];
    __shared__ bool last;
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 32, col = blockIdx.x * 32;
    int tile = blockIdx.y * gridDim.x + blockIdx.x, tiles = gridDim.x * gridDim.y;
    int share = (K + 32 * PARTS - 1) / (32 * PARTS) * 32, end = min(K, (int)(blockIdx.z + 1) * share);
    float sum[4] = {};
    for (int k = blockIdx.z * share; k < end; k += 32) {
        for (int i = ty; i < 32; i += 8) {
            left[i][tx] = row + i < M && k + tx < end ? a[(size_t)(row + i) * K + k + tx] : 0.0f;
            right[i][tx] = k + i < end && col + tx < N ? b[(size_t)(k + i) * N + col + tx] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 32; ++e)
            for (int i = 0; i < 4; ++i) sum[i] += left[ty + 8 * i][e] * right[e][tx];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i) parts[((size_t)blockIdx.z * tiles + tile) * 1024 + (ty + 8 * i) * 32 + tx] = sum[i];
    __threadfence();
    __syncthreads();
    if (tx == 0 && ty == 0) last = atomicAdd(arrived + tile, 1) == PARTS - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = 0; i < 4; ++i) {
        float total = 0.0f;
        for (int part = 0; part < PARTS; ++part)
            total += __ldcg(parts + ((size_t)part * tiles + tile) * 1024 + (ty + 8 * i) * 32 + tx);
        if (row + ty + 8 * i < M && col + tx < N) c[(size_t)(row + ty + 8 * i) * N + col + tx] = total;
    }
}
