#pragma unroll
for (int i = threadIdx.x; i < BK * $size$share; i += THREADS) {
    const int $across = i / $rows;
    const int $along = i % $columns;
    $copy
}
