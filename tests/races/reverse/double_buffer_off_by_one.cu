/*
[[launch]]
kernel = "k"
grid = [1]
block = [128]
args = ["x", "out", "rows"]
*/
// race: a round fills the buffer that is being read
extern "C" __global__ void k(const float* x, float* out, int rows) {
    int t = threadIdx.x;
    __shared__ float s[2][128];
    s[0][t] = x[t];
    for (int row = 0; row < rows; row++) {
        __syncthreads();
        if (row + 1 < rows) s[(row + 1) & 1][t] = x[(row + 1) * 128 + t];  // clean
        if (row + 1 < rows) s[row & 1][t] = x[(row + 1) * 128 + t];  // bug other
        out[row * 128 + t] = s[row & 1][127 - t];  // found
    }
}
