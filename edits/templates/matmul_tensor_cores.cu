static_assert(WM % 16 == 0 && WN % 16 == 0, "warps compute whole fragments");
static_assert(BK % 16 == 0 && STAGES >= 2, "fragments take 16 products at a time");
static_assert(BM % WM == 0 && BN % WN == 0, "warps must cover the outputs");
extern __shared__ uint4 tiles[]; // aligned to 16 bytes
auto* const left_tile = reinterpret_cast<$element (*)[$left_lines][$left_length]>(tiles);
auto* const right_tile = reinterpret_cast<$element (*)[$right_lines][$right_length]>(left_tile + STAGES);
$uniform
const int row0 = blockIdx.y * BM;
const int col0 = blockIdx.x * BN;
const int warp = threadIdx.x / 32;
const int lane = threadIdx.x % 32;
const int warp_row = warp / (BN / WN) * WM;
const int warp_col = warp % (BN / WN) * WN;
float sums[WM / 16][WN / 8][4];
#pragma unroll
for (int i = 0; i < WM / 16; ++i) {
    #pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            sums[i][j][e] = $initial;
        }
    }
}
auto copy = [&](int k0, int stage) {
    if (k0 < $k_bound) {
        $copy_left
        $copy_right
    }
    __pipeline_commit();
};
#pragma unroll
for (int step = 0; step < (STAGES - 1); ++step) {
    copy(step * BK, step);
}
for (int k0 = 0; k0 < $k_bound; k0 += BK) {
    const int step = k0 / BK;
    __pipeline_wait_prior(STAGES - 2);
    // All warps are done with the step before, whose tiles are the next to be overwritten.
    __syncthreads();
    copy(k0 + (STAGES - 1) * BK, (step + (STAGES - 1)) % STAGES);
    const int stage = step % STAGES;
    #pragma unroll
    for (int e = 0; e < BK; e += 16) {
        unsigned left[WM / 16][4], right[WN / 16][4];
        #pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
            fragments::$load_left;
        }
        #pragma unroll
        for (int j = 0; j < WN / 16; ++j) {
            fragments::$load_right;
        }
        #pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
            #pragma unroll
            for (int j = 0; j < WN / 16; ++j) {
                fragments::multiply(sums[i][2 * j], left[i], right[j][0], right[j][1]);
                fragments::multiply(sums[i][2 * j + 1], left[i], right[j][2], right[j][3]);
            }
        }
    }
}
__pipeline_wait_prior(0);
#pragma unroll
for (int i = 0; i < WM / 16; ++i) {
    #pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int $row = row0 + warp_row + i * 16 + e / 2 * 8 + lane / 4;
            const int $col = col0 + warp_col + j * 8 + lane % 4 * 2 + e % 2;
            if ($inside) {
                $epilogue
            }
        }
    }
}
