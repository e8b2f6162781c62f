/*
[[launch]]
kernel = "sort_rows"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
*/
// What is smaller, or equal and further left, comes before.
extern "C" __global__ void sort_rows(const int* x, int* out, int cols) {
    const int* from = x + (size_t)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 128) {
        int value = from[i], place = 0;
        for (int j = 0; j < cols; ++j) place += from[j] < value || (from[j] == value && j < i);
        out[(size_t)blockIdx.x * cols + place] = value;
    }
}
