/*
[[launch]]
kernel = "k"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n", "sum", "lock", "done"]

[[scratch]]
name = "sum"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "lock"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "done"
dtype = "int32"
shape = [1]
zero = true
*/
// race: what a lock protects is passed on without a fence
extern "C" __global__ void k(const int* x, int* out, int n, int* sum, int* lock, int* done) {
    int i = blockIdx.x * 128 + threadIdx.x;
    __shared__ int s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    if (i < n) atomicAdd(&s, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();  // clean
        *sum += s;  // found
        __threadfence();  // clean
        atomicExch(lock, 0);
        if (atomicAdd(done, 1) == gridDim.x - 1) out[0] = atomicAdd(sum, 0);
    }
}
