__shared__ $element left_tile[TILE][TILE];
__shared__ $element right_tile[TILE][TILE$pad];
const int tx = threadIdx.x;
const int ty = threadIdx.y;
$uniform
const int $row = blockIdx.y * TILE + ty;
const int $col = blockIdx.x * TILE + tx;
$element $sum = $initial;
for (int k0 = $k_start; k0 < $k_bound; k0 += TILE) {
    $stage_left
    $stage_right
    __syncthreads();
    #pragma unroll
    for (int $k = 0; $k < TILE; ++$k) {
        $sum += left_tile$left_at * right_tile$right_at;
    }
    __syncthreads();
}
if ($inside) {
    $epilogue
}
