/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "cols"]
*/
// The compiler's error would quote the file.
#include "/etc/passwd"
extern "C" __global__ void softmax(const float* x, float* out, int cols) {}
