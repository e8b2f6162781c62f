/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
#define QUIET(x) _Pragma(x)
QUIET("push_macro(\"softmax\")")
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {}
