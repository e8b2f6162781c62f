/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out", "part"]

[[scratch]]
name = "part"
dtype = "float32"
shape = ["rows", 128]
*/
// race: a block reads what another one writes
extern "C" __global__ void k(const float* x, float* out, float* part) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    part[i] = x[i];  // bug other
    part[i] = x[i];  // clean
    __syncthreads();
    int b = blockIdx.x;  // clean
    int b = gridDim.x - 1 - blockIdx.x;  // bug
    float v = part[b * 128 + 127 - t];  // found
    out[b * 128 + t] = v;
}
