/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
extern "C" __global__ void k(const float* x, float* out) {
    out[blockIdx.x * 128 + threadIdx.x] = x[blockIdx.x * 128 + 127 - threadIdx.x];
}
