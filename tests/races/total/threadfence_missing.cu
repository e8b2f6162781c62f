/*
[[launch]]
kernel = "k"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n", "part", "done"]

[[scratch]]
name = "part"
dtype = "int32"
shape = ["ceil_div(n, 128)"]

[[scratch]]
name = "done"
dtype = "int32"
shape = [1]
zero = true
*/
// race: the last block adds what the others may not have made visible
extern "C" __global__ void k(const int* x, int* out, int n, int* part, int* done) {
    __shared__ int s;
    __shared__ bool last;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) atomicAdd(&s, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        part[blockIdx.x] = s;  // other
        __threadfence();  // clean
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += __ldcg(part + b);  // found
        out[0] = sum;
    }
}
