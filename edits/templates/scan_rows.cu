$prologue
const int $row = blockIdx.x;
$declared
const bool whole = $aligned;
float carry = 0.0f;
for (int tile = 0; tile < $bound; tile += $width * THREADS) {
    const int first = tile + $width * threadIdx.x;
    $vectors
    if (whole && first + $width <= $bound) {
        $loads
    } else {
        $scalar_loads
    }
    float share = 0.0f;
    $adding
    float block_total;
    float $total = carry + sum_before(share, block_total);
    carry += block_total;
    $computing
    if (whole && first + $width <= $bound) {
        $stores
    } else {
        $scalar_stores
    }
}
