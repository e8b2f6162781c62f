#pragma unroll
for (int at = threadIdx.x; at < $lines * ($width / 8); at += THREADS) {
    const int line = at / ($width / 8);
    const int part = at % ($width / 8) * 8;
    if ($line0 + line < $line_end && $part0 + part + 8 <= $part_end && is_aligned(&$element)) {
        __pipeline_memcpy_async(&$tile[stage][line][part], &$element, 16);
    } else {
        for (int e = 0; e < 8; ++e) {
            const bool inside = $line0 + line < $line_end && $part0 + part + e < $part_end;
            $tile[stage][line][part + e] = inside ? $one : static_cast<$type>(0.0f);
        }
    }
}
