/*
# The launch plan, as TOML. Numbers may be expressions over dimensions, scalars and the macros below.
# Several [[launch]] tables run one after another.
[[launch]]
kernel = "row_sum"
grid = ["ceil_div(rows, BLOCK)"]      # up to three numbers: x, y, z
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]   # inputs, outputs, scratch buffers, numbers
# shared = "BLOCK * 4"                # bytes of dynamic shared memory

# [[scratch]]                         # a buffer of the kernel's own
# name = "partial"
# dtype = "float32"
# shape = ["rows"]
# zero = true                         # zeroed before every run, on the kernel's time
*/
#define BLOCK 256

// One thread per row.
extern "C" __global__ void row_sum(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int col = 0; col < cols; ++col) {
            sum += x[row * cols + col];
        }
        out[row] = sum;
    }
}
