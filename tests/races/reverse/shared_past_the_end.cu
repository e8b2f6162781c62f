/*
[[launch]]
kernel = "k"
grid = ["rows"]
block = [128]
args = ["x", "out"]
*/
// out_of_bounds: a padded index runs out of the array
extern "C" __global__ void k(const float* x, float* out) {
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    __shared__ float s[128 + 3];  // clean
    __shared__ float s[128];  // bug
    s[t + t / 32] = x[i];  // found
    __syncthreads();
    int r = 127 - t;
    out[i] = s[r + r / 32];
}
