/*
[[launch]]
kernel = "n_body"
grid = ["ceil_div(bodies, BLOCK)"]
block = ["BLOCK"]
args = ["body", "acceleration", "bodies", "softening"]
*/
#define BLOCK 256

// One thread per body.
extern "C" __global__ void n_body(const float* body, float* acceleration, int bodies, float softening) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < bodies) {
        float ax = 0.0f;
        float ay = 0.0f;
        float az = 0.0f;
        for (int j = 0; j < bodies; ++j) {
            float dx = body[j * 4] - body[i * 4];
            float dy = body[j * 4 + 1] - body[i * 4 + 1];
            float dz = body[j * 4 + 2] - body[i * 4 + 2];
            float square = dx * dx + dy * dy + dz * dz + softening;
            float strength = body[j * 4 + 3] / (square * sqrtf(square));
            ax += strength * dx;
            ay += strength * dy;
            az += strength * dz;
        }
        acceleration[i * 3] = ax;
        acceleration[i * 3 + 1] = ay;
        acceleration[i * 3 + 2] = az;
    }
}
