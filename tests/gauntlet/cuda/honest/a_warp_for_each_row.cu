/*
[[launch]]
kernel = "spmv"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["offsets", "columns", "values", "x", "y", "rows"]
*/
// A warp for each row, loads through the read-only cache, the result by whichever lane comes first.
extern "C" __global__ void spmv(const int* offsets, const int* columns, const float* values, const float* x, float* y,
                                int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = __ldg(offsets + row) + lane, end = __ldg(offsets + row + 1); i < end; i += 32)
        sum = fmaf(__ldcs(values + i), __ldg(x + __ldcs(columns + i)), sum);
    for (int s = 1; s < 32; s <<= 1) sum += __shfl_xor_sync(0xffffffff, sum, s);
    if (lane == 0) __stcs(y + row, sum);
}
