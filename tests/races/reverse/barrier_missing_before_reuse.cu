/*
[[launch]]
kernel = "k"
grid = [2]
block = [128]
args = ["x", "out", "rows"]
*/
// race: the next round overwrites what others may still read
extern "C" __global__ void k(const float* x, float* out, int rows) {
    int t = threadIdx.x;
    __shared__ float s[128];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        s[t] = x[row * 128 + t];  // other
        __syncthreads();
        out[row * 128 + t] = s[127 - t];  // found
        __syncthreads();  // clean
    }
}
