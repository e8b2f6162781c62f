/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
extern "C" __global__ void work(const float* x, float* out, int n) { out[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    work<<<1, 32>>>(x, out, cols);
}
