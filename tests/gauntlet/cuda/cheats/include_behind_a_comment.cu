/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
# /* a comment */ include "/etc/passwd"
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {}
