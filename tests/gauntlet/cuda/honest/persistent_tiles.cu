/*
[[launch]]
kernel = "matmul"
grid = [528]
block = [16, 16]
args = ["a", "b", "c", "M", "N", "K"]
*/
// As many blocks as fit on an H100 at once; each goes from tile to tile, columns of tiles first.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float left[32][17], right[16][33];
    int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    int down = (M + 31) / 32, across = (N + 31) / 32;
    for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
        int top = tile % down * 32, first = tile / down * 32;
        float sum[2][2] = {};
        for (int k = 0; k < K; k += 16) {
            for (int i = t; i < 512; i += 256) {
                int row = top + i / 16, at = k + i % 16, line = k + i / 32, col = first + i % 32;
                left[i / 16][i % 16] = row < M && at < K ? a[row * K + at] : 0.0f;
                right[i / 32][i % 32] = line < K && col < N ? b[line * N + col] : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < 16; ++e)
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    sum[r / 2][r % 2] = fmaf(left[ty + r / 2 * 16][e], right[e][tx + r % 2 * 16], sum[r / 2][r % 2]);
            __syncthreads();
        }
        for (int r = 0; r < 4; ++r) {
            int row = top + ty + r / 2 * 16, col = first + tx + r % 2 * 16;
            if (row < M && col < N) c[row * N + col] = sum[r / 2][r % 2];
        }
    }
}
