/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// race: lanes of a warp exchange through shared memory as if they ran in lockstep
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[blockIdx.x * 128 + (t ^ 96)];  // other
    __syncwarp();  // clean
    out[i] = s[t ^ 31];  // found
}
