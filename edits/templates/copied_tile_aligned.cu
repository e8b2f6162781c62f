// Lines are as far apart as the first two, so that what is aligned for both is for all.
if ($line0 + $lines <= $line_end && $part0 + $width <= $part_end && is_aligned(&$first) && is_aligned(&$second)) {
    #pragma unroll
    for (int at = threadIdx.x; at < $lines * ($width / 8); at += THREADS) {
        const int line = at / ($width / 8);
        const int part = at % ($width / 8) * 8;
        __pipeline_memcpy_async(&$tile[stage][line][part], &$element, 16);
    }
} else {
    $careful
}
