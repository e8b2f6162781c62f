/*
[[launch]]
kernel = "fill"
grid = [1]
block = [32]
args = ["list", "next"]

[[launch]]
kernel = "k"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n", "sum", "list", "next", "done"]

[[scratch]]
name = "sum"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "list"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "next"
dtype = "int32"
shape = [16]
zero = true

[[scratch]]
name = "done"
dtype = "int32"
shape = [1]
zero = true
*/
// race: a free list compares an index that may have come back with another successor
extern "C" __global__ void fill(int* list, int* next) {
    // Nodes 1 to 4, each before the one below it; 0 ends the list.
    if (threadIdx.x == 0) *list = 4;
    if (threadIdx.x < 5) next[threadIdx.x] = threadIdx.x ? threadIdx.x - 1 : 0;
}

extern "C" __global__ void k(const int* x, int* out, int n, int* sum, int* list, int* next, int* done) {
    // Each thread takes a node, adds, and puts the node back.
    int i = blockIdx.x * 128 + threadIdx.x;
    for (bool todo = i < n; todo;) {
        unsigned head = atomicAdd(list, 0);
        int node = head & 15;
        if (node == 0) continue;
        int after = atomicAdd(next + node, 0) & 15;
        unsigned tag = 0;  // bug
        unsigned tag = (head & ~15u) + 16;  // clean
        if (atomicCAS((unsigned*)list, head, tag | after) != head) continue;  // found
        atomicAdd(sum, x[i]);
        for (bool back = true; back;) {
            unsigned old = atomicAdd(list, 0);
            atomicExch(next + node, old & 15);  // other
            __threadfence();
            tag = 0;  // bug
            tag = (old & ~15u) + 16;  // clean
            back = atomicCAS((unsigned*)list, old, tag | node) != old;
        }
        todo = false;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(done, 1) == gridDim.x - 1) out[0] = atomicAdd(sum, 0);
}
