/*
[[launch]]
kernel = "conv1d"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["signal", "weights", "out", "n", "taps"]
*/
#define BLOCK 256

// One thread per output.
extern "C" __global__ void conv1d(const float* signal, const float* weights, float* out, int n, int taps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float sum = 0.0f;
        for (int tap = 0; tap < taps; ++tap) {
            int at = i + tap - taps / 2;
            if (at >= 0 && at < n) {
                sum += weights[tap] * signal[at];
            }
        }
        out[i] = sum;
    }
}
