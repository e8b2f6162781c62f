/*
[[launch]]
kernel = "k"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n"]
*/
// race: one block sets to zero what the others already add to
extern "C" __global__ void k(const int* x, int* out, int n) {
    int sum = 0;
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i == 0) out[0] = 0;  // bug other
    __syncthreads();
    if (i < n) atomicAdd(out, x[i]);  // bug found
    if (i == 0) for (int j = 0; j < n; j++) sum += x[j];  // clean
    if (i == 0) out[0] = sum;  // clean
}
