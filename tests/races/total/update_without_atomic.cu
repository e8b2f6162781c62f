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
// race: blocks add to one place, each reading before the others have written
extern "C" __global__ void k(const int* x, int* out, int n, int* sum, int* done) {
    __shared__ int s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) atomicAdd(&s, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(sum, s);  // clean
        if (atomicAdd(done, 1) == gridDim.x - 1) out[0] = atomicAdd(sum, 0);  // clean
        *sum += s;  // bug found
        if (atomicAdd(done, 1) == gridDim.x - 1) out[0] = *sum;  // bug
    }
}
