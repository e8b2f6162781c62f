/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: a thread reads what another stores, and nothing orders them
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];  // other
    __syncthreads();  // clean
    out[i] = s[127 - t];  // found
}
