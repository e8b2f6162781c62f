/*
[[launch]]
kernel = "vector_add"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["a", "b", "c", "n"]
*/
#define BLOCK 64

// One thread per element.
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}
