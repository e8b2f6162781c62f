/*
[[launch]]
kernel = "k"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n", "sum", "done"]

[[scratch]]
name = "sum"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "done"
dtype = "int32"
shape = [1]
zero = true
*/
// wrong_result: the block of the highest number takes itself for the last one to finish
extern "C" __global__ void k(const int* x, int* out, int n, int* sum, int* done) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int before = atomicAdd(done, 1);
        if (before == gridDim.x - 1) out[0] = atomicAdd(sum, 0);  // clean
        if (blockIdx.x == gridDim.x - 1) out[0] = atomicAdd(sum, 0);  // bug found
    }
}
