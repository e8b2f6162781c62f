/*
[[launch]]
kernel = "row_extremes"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "largest", "place", "above", "rows", "cols"]
*/
// Value and place travel together, ties go to the left; counts by ballots.
extern "C" __global__ void row_extremes(const float* x, float* largest, long long* place, int* above, int rows, int cols) {
    int row = blockIdx.x * 4 + threadIdx.y, lane = threadIdx.x, count = 0;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    int best = min(lane, cols - 1);
    float value = from[best];
    for (int i = lane; __any_sync(~0u, i < cols); i += 32) {
        float other = i < cols ? from[i] : 0.0f;
        if (i < cols && other > value) value = other, best = i;
        count += __popc(__ballot_sync(~0u, other > 0.0f));
    }
    for (int s = 16; s; s >>= 1) {
        float other = __shfl_xor_sync(~0u, value, s);
        int there = __shfl_xor_sync(~0u, best, s);
        if (other > value || (other == value && there < best)) value = other, best = there;
    }
    if (lane == 0) largest[row] = value, place[row] = best, above[row] = count;
}
