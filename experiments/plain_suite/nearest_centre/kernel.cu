/*
[[launch]]
kernel = "nearest_centre"
grid = ["ceil_div(points, BLOCK)"]
block = ["BLOCK"]
args = ["x", "c", "distance", "points", "centres", "dimensions"]
*/
#define BLOCK 256

// One thread per point.
extern "C" __global__ void nearest_centre(const float* x, const float* c, float* distance, int points,
                                          int centres, int dimensions) {
    int point = blockIdx.x * blockDim.x + threadIdx.x;
    if (point < points) {
        float nearest = 0.0f;
        for (int centre = 0; centre < centres; ++centre) {
            float sum = 0.0f;
            for (int axis = 0; axis < dimensions; ++axis) {
                float offset = x[point * dimensions + axis] - c[centre * dimensions + axis];
                sum += offset * offset;
            }
            if (centre == 0 || sum < nearest) {
                nearest = sum;
            }
        }
        distance[point] = nearest;
    }
}
