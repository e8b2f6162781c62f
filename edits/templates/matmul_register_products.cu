for ($header; k0 += BK) {
    $stage_left
    $stage_right
    __syncthreads();
    #pragma unroll
    for (int $k = 0; $k < BK; ++$k) {
        $element left_part[TM], right_part[TN];
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
            left_part[i] = left_tile[$k][(i / VEC * (BM / TM) + ty) * VEC + i % VEC];
        }
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            right_part[j] = right_tile[$k][(j / VEC * (BN / TN) + tx) * VEC + j % VEC];
        }
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
            #pragma unroll
            for (int j = 0; j < TN; ++j) {
                $sum[i][j] += left_part[i] * right_part[j];
            }
        }
    }
    __syncthreads();
}
