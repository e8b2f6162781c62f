/*
[[launch]]
kernel = "cumsum"
grid = ["rows"]
block = ["TILE / 2"]
shared = "4 * (TILE + TILE / 32 + 1)"
args = ["x", "out", "cols"]
*/
#define TILE 256
#define AT(i) ((i) + (i) / 32) // a gap after each 32, against bank conflicts

// Blelloch's scan: up the tree and down again in place, in dynamic shared memory.
extern "C" __global__ void cumsum(const float* x, float* out, int cols) {
    extern __shared__ float tree[];
    const float* from = x + (long long)blockIdx.x * cols;
    float* to = out + (long long)blockIdx.x * cols;
    int t = threadIdx.x;
    float before = 0.0f;
    for (int start = 0; start < cols; start += TILE) {
        float own[2];
        for (int half = 0; half < 2; ++half) {
            int i = t + half * (TILE / 2);
            own[half] = start + i < cols ? from[start + i] : 0.0f;
            tree[AT(i)] = own[half];
        }
        for (int step = 1; step < TILE; step *= 2) {
            __syncthreads();
            int right = (t + 1) * 2 * step - 1;
            if (right < TILE) tree[AT(right)] += tree[AT(right - step)];
        }
        __syncthreads();
        float total = tree[AT(TILE - 1)];
        __syncthreads();
        if (t == 0) tree[AT(TILE - 1)] = 0.0f;
        for (int step = TILE / 2; step; step /= 2) {
            __syncthreads();
            int right = (t + 1) * 2 * step - 1;
            if (right < TILE) {
                float left = tree[AT(right - step)];
                tree[AT(right - step)] = tree[AT(right)];
                tree[AT(right)] += left;
            }
        }
        __syncthreads();
        for (int half = 0; half < 2; ++half) {
            int i = t + half * (TILE / 2);
            if (start + i < cols) to[start + i] = before + (tree[AT(i)] + own[half]);
        }
        before += total;
        __syncthreads();
    }
}
