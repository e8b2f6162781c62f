/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// divergent_barrier: threads leave a loop with a barrier after different numbers of rounds
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128];
    s[t] = x[i];
    int rounds = t < 64 ? 1 : 2;  // bug
    int rounds = 2;  // clean
#pragma unroll 1
    for (int r = 0; r < rounds; r++) {
        __syncthreads();  // found
    }
    s[t] += 0;
    __syncthreads();  // other
    out[i] = s[127 - t];
}
