__shared__ $type tile[SIDE][SIDE + 1];
const $near_type near0 = ($near_type)blockIdx.x * SIDE;
const $far_type far0 = ($far_type)blockIdx.y * SIDE;
#pragma unroll
for (int i = threadIdx.y; i < SIDE; i += ROWS) {
    const $far_type $far = far0 + i;
    const $near_type $near = near0 + threadIdx.x;
    if ($inside) {
        tile[i][threadIdx.x] = $element;
    }
}
__syncthreads();
#pragma unroll
for (int i = threadIdx.y; i < SIDE; i += ROWS) {
    const $near_type $near = near0 + i;
    const $far_type $far = far0 + threadIdx.x;
    if ($inside) {
        $target = $value;
    }
}
