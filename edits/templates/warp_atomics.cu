$type warp_total = 0;
if ($inside) {
    $statements
    warp_total = $value;
}
#pragma unroll
for (int offset = 16; offset > 0; offset /= 2) {
    warp_total += __shfl_down_sync(0xffffffff, warp_total, offset);
}
if (threadIdx.x % 32 == 0) {
    atomicAdd($target, warp_total);
}
