/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: two exchanges share a buffer, and the second begins too early
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];
    __syncthreads();
    float v = s[t ^ 96];  // found
    __syncthreads();  // clean
    s[t] = v;  // other
    __syncthreads();
    out[i] = s[31 - t % 32 + t / 32 * 32];
}
