/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// uninitialised_read: half of the array is never stored
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    if (t < 64)  // bug
    s[t] = x[i];
    __syncthreads();
    out[i] = s[127 - t];  // found
}
