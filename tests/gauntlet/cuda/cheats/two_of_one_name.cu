/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
__global__ void softmax(const float* x, float* out, int rows, int cols) {}
__global__ void softmax(const float* x, float* out, long rows, long cols) {}
