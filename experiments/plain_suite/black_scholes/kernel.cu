/*
[[launch]]
kernel = "black_scholes"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["spot", "strike", "years", "call", "n", "rate", "volatility"]
*/
#define BLOCK 256

// One thread per option.
extern "C" __global__ void black_scholes(const float* spot, const float* strike, const float* years, float* call,
                                         int n, float rate, float volatility) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float d1 = (logf(spot[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) /
                   (volatility * sqrtf(years[i]));
        float d2 = (logf(spot[i] / strike[i]) + (rate - 0.5f * volatility * volatility) * years[i]) /
                   (volatility * sqrtf(years[i]));
        call[i] = spot[i] * normcdff(d1) - strike[i] * expf(-rate * years[i]) * normcdff(d2);
    }
}
