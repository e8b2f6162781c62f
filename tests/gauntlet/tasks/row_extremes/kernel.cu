/*
[[launch]]
kernel = "row_extremes"
grid = ["ceil_div(rows, 128)"]
block = [128]
args = ["x", "largest", "place", "above", "rows", "cols"]
*/
extern "C" __global__ void row_extremes(const float* x, float* largest, long long* place, int* above, int rows,
                                        int cols) {
    int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    int best = 0, count = 0;
    for (int i = 0; i < cols; ++i) {
        if (from[i] > from[best]) best = i;
        count += from[i] > 0.0f;
    }
    largest[row] = from[best];
    place[row] = best;
    above[row] = count;
}
