/*
[[launch]]
kernel = "batched_matmul"
grid = ["batch"]
block = ["size", "size"]
args = ["a", "b", "c", "size"]
*/

// One thread per output, one block per matrix.
extern "C" __global__ void batched_matmul(const float* a, const float* b, float* c, int size) {
    int row = threadIdx.x;
    int col = threadIdx.y;
    int first = blockIdx.x * size * size;
    float sum = 0.0f;
    for (int k = 0; k < size; ++k) {
        sum += a[first + row * size + k] * b[first + k * size + col];
    }
    c[first + row * size + col] = sum;
}
