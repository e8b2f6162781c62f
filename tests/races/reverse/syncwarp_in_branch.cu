/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// divergent_warp: __syncwarp names lanes that have gone another way and come to no barrier
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[blockIdx.x * 128 + (t ^ 96)];
    if (t % 32 < 16)  // bug
    __syncwarp();  // found
    __syncthreads();
    out[i] = s[t ^ 31];
}
