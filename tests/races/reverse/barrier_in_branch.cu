/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// divergent_barrier: half of the threads wait at one barrier and half at another
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    if (t < 64) {
        s[t] = x[i];
        __syncthreads();  // bug found
        out[i] = s[127 - t];  // bug
    } else {
        s[t] = x[i];
        __syncthreads();  // bug other
        out[i] = s[127 - t];  // bug
    }
    __syncthreads();  // clean
    out[i] = s[127 - t];  // clean
}
