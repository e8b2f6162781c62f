/*
[[launch]]
kernel = "k"
grid = [4]
block = [128]
args = ["x", "out", "rows * cols"]
*/
// race: blocks overlap by one element, which they update in place
extern "C" __global__ void k(const float* x, float* out, int n) {
    int chunk = (n + gridDim.x - 1) / gridDim.x;
    int begin = blockIdx.x * chunk, end = min(n, begin + chunk);
    for (int i = begin + threadIdx.x; i < end; i += 128) out[i] = x[i];
    __syncthreads();
    for (int i = begin + threadIdx.x; i < end; i += 128) out[i] *= 2;  // clean
    for (int i = begin + threadIdx.x; i < min(n, end + 1); i += 128) out[i] *= 2;  // bug found
}
