/*
[[launch]]
kernel = "outliers"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "far", "limit", "n"]
*/
// Neighbours by shuffles, truth by ballots; a lane of four writes four bytes as one word where all four exist.
extern "C" __global__ void outliers(const float* x, unsigned char* far, float limit, int n) {
    int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x % 32;
    float value = i < n ? x[i] : 0.0f, left = __shfl_up_sync(~0u, value, 1);
    if (lane == 0 && i > 0 && i < n) left = x[i - 1];
    unsigned bits = __ballot_sync(~0u, i > 0 && i < n && fabsf(value - left) > limit);
    if (lane % 4 == 0 && i + 3 < n) {
        unsigned four = bits >> lane & 15;
        *reinterpret_cast<unsigned*>(far + i) = (four * 0x204081u) & 0x01010101u;
    } else if (i < n && (i & ~3) + 3 >= n) {
        far[i] = bits >> lane & 1;
    }
}
