// The $words over the lanes of a warp, returned to all of them.
__device__ float $name(float value) {
    #pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value = $combined;
    }
    return value;
}
