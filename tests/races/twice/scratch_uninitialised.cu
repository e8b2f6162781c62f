/*
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, 128)"]
block = [128]
args = ["x", "out", "rows * cols", "part"]

[[scratch]]
name = "part"
dtype = "float32"
shape = ["rows * cols"]
*/
// uninitialised_read: a buffer is read one element further than it was written
extern "C" __global__ void k(const float* x, float* out, int n, float* part) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) part[i] = x[i];  // clean
    if (i < n - 1) part[i] = x[i];  // bug
    __syncthreads();
    if (i < n) out[i] = 2 * part[i];  // found
}
