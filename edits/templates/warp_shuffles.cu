float $lane = $value;
#pragma unroll
for (int $offset = 16; $offset > 0; $offset /= 2) {
    $lane = $combined;
}
if ($thread % 32 == 0) {
    $array[$thread / 32] = $lane;
}
__syncthreads();
if ($thread < 32) {
    $lane = $thread < $warps ? $array[$thread] : $neutral;
    #pragma unroll
    for (int $offset = 16; $offset > 0; $offset /= 2) {
        $lane = $combined;
    }
    __syncwarp();
    if ($thread == 0) {
        $array[0] = $lane;
    }
}
__syncthreads();
