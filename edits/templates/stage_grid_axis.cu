$kept
const int $outer = blockIdx.z / $groups;
const int first = blockIdx.z % $groups * ITEMS;
const bool inside = $guard;
__shared__ alignas(16) float factors[$size];
float $total[ITEMS];
#pragma unroll
for (int item = 0; item < ITEMS; ++item) {
    $total[item] = $initial;
}
for (int start = 0; start < $bound; start += DEPTH) {
    __syncthreads();
    for (int at = threadIdx.y * blockDim.x + threadIdx.x; at < sizeof(factors) / sizeof(float); at += blockDim.x * blockDim.y) {
        $places
        const int $k = start + at / ($below);
        factors[at] = $k < $bound && first + at % ITEMS < $count ? $own : 0.0f;
    }
    __syncthreads();
    if (inside) {
        $loop
    }
}
if (inside) {
    #pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int $axis = first + item;
        if ($axis < $count) {
            $epilogue
        }
    }
}
