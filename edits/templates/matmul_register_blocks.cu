static_assert(BM % TM == 0 && BN % TN == 0, "threads must cover the block's outputs");
static_assert(TM % VEC == 0 && TN % VEC == 0 && BM % 4 == 0 && BN % 4 == 0 && BK % 4 == 0, "vectors must cover tiles");
__shared__ alignas(16) $element left_tile[BK][$left_size];
__shared__ alignas(16) $element right_tile[BK][$right_size];
$uniform
const int tx = threadIdx.x % (BN / TN);
const int ty = threadIdx.x / (BN / TN);
const int row0 = blockIdx.y * BM;
const int col0 = blockIdx.x * BN;
$element $sum[TM][TN];
#pragma unroll
for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int j = 0; j < TN; ++j) {
        $sum[i][j] = $initial;
    }
}
$products
#pragma unroll
for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int q = 0; q < TN / VEC; ++q) {
        #pragma unroll
        for (int j = 0; j < VEC; ++j) {
            const int $row = row0 + (i / VEC * (BM / TM) + ty) * VEC + i % VEC;
            const int $col = col0 + (q * (BN / TN) + tx) * VEC + j;
            if ($inside) {
                $epilogue
            }
        }
    }
}
