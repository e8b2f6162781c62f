namespace $space {

// Two floats as the 16-bit floats of one register.
__device__ unsigned packed(float low, float high) {
    const auto pair = $to_pair(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}

// 2 to the power of x, within 2 roundings.
__device__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

$fragments

// A block's copy of lines first.. of a matrix, asynchronous where 8 elements exist, and zeros where there are none.
__device__ void stage($element (&tile)[$KEYS][$DIMS + 8], const $element* matrix, int first, int lines,
                      int dim0, int dim) {
    if (first + $KEYS <= lines && dim0 + $DIMS <= dim && dim % 8 == 0 && $aligned(matrix)) {
        #pragma unroll
        for (int at = threadIdx.x; at < $KEYS * ($DIMS / 8); at += $THREADS) {
            const int line = at / ($DIMS / 8), part = at % ($DIMS / 8) * 8;
            __pipeline_memcpy_async(&tile[line][part], &matrix[(first + line) * dim + dim0 + part], 16);
        }
        return;
    }
    for (int at = threadIdx.x; at < $KEYS * ($DIMS / 8); at += $THREADS) {
        const int line = at / ($DIMS / 8), part = at % ($DIMS / 8) * 8;
        const $element* from = &matrix[(first + line) * dim + dim0 + part];
        if (first + line < lines && dim0 + part + 8 <= dim && $aligned(from)) {
            __pipeline_memcpy_async(&tile[line][part], from, 16);
        } else {
            for (int e = 0; e < 8; ++e) {
                const bool inside = first + line < lines && dim0 + part + e < dim;
                tile[line][part + e] = inside ? from[e] : static_cast<$element>(0.0f);
            }
        }
    }
}

// Two neighbouring elements of a row, zeros where there are none.
__device__ unsigned pair_at(const $element* matrix, int row, int rows, int at, int dim) {
    const float low = row < rows && at < dim ? $to_float(matrix[row * dim + at]) : 0.0f;
    const float high = row < rows && at + 1 < dim ? $to_float(matrix[row * dim + at + 1]) : 0.0f;
    return packed(low, high);
}

// One pass over the keys that a block's queries may see.
__device__ void attend(const $element* queries, const $element* keys, const $element* values, $element* out,
                       int length, int dim, float factor, $element (&key_tile)[$KEYS][$DIMS + 8],
                       $element (&value_tile)[$KEYS][$DIMS + 8]) {
    static_assert($QUERIES % 16 == 0 && $KEYS % 16 == 0 && $DIMS % 16 == 0, "warps compute whole fragments");
    const float scale = factor * 1.4426950408889634f; // for powers of two instead of e
    const int head = blockIdx.y * length * dim;
    const int query0 = (gridDim.x - 1 - blockIdx.x) * $QUERIES; // the longest first
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = query0 + warp * 16 + lane / 4; // and the eighth after it
    const int column = lane % 4 * 2;
    const int end = $end;
    const int out0 = blockIdx.z * $DIMS;

    unsigned query_parts[$DIMS / 16][4];
    float sums[$DIMS / 8][4] = {};
    float largest[2] = {__int_as_float(0xff800000), __int_as_float(0xff800000)};
    float total[2] = {};
    stage(key_tile, keys + head, 0, length, 0, dim);
    __pipeline_commit();
    stage(value_tile, values + head, 0, length, out0, dim);
    __pipeline_commit();
    for (int key0 = 0; key0 < end; key0 += $KEYS) {
        float scores[$KEYS / 8][4] = {};
        for (int dim0 = 0; dim0 < dim; dim0 += $DIMS) {
            if (key0 == 0 || dim > $DIMS) {
                #pragma unroll
                for (int d = 0; d < $DIMS / 16; ++d) {
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int at = dim0 + d * 16 + i / 2 * 8 + column;
                        query_parts[d][i] = pair_at(queries + head, row + i % 2 * 8, length, at, dim);
                    }
                }
            }
            if (dim0 > 0) {
                stage(key_tile, keys + head, key0, length, dim0, dim);
                __pipeline_commit();
                __pipeline_wait_prior(0);
            } else {
                __pipeline_wait_prior(1);
            }
            __syncthreads();
            #pragma unroll
            for (int d = 0; d < $DIMS / 16; ++d) {
                #pragma unroll
                for (int n = 0; n < $KEYS / 16; ++n) {
                    unsigned key_parts[4];
                    load_matrices(key_parts, &key_tile[n * 16 + lane / 16 * 8 + lane % 8][d * 16 + lane / 8 % 2 * 8]);
                    multiply(scores[2 * n], query_parts[d], key_parts[0], key_parts[1]);
                    multiply(scores[2 * n + 1], query_parts[d], key_parts[2], key_parts[3]);
                }
            }
            __syncthreads();
        }
        if (key0 + $KEYS < end) {
            stage(key_tile, keys + head, key0 + $KEYS, length, 0, dim);
        }
        __pipeline_commit();
        const bool whole = $whole; // every query sees every key of the tile
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float larger = largest[half];
            #pragma unroll
            for (int n = 0; n < $KEYS / 8; ++n) {
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    scores[n][2 * half + i] *= scale;
                }
            }
            if (!whole) {
                #pragma unroll
                for (int n = 0; n < $KEYS / 8; ++n) {
                    #pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int key = key0 + n * 8 + column + i, query = row + half * 8;
                        if (!($visible)) {
                            scores[n][2 * half + i] = __int_as_float(0xff800000);
                        }
                    }
                }
            }
            #pragma unroll
            for (int n = 0; n < $KEYS / 8; ++n) {
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    larger = fmaxf(larger, scores[n][2 * half + i]);
                }
            }
            larger = fmaxf(larger, __shfl_xor_sync(0xffffffff, larger, 1));
            larger = fmaxf(larger, __shfl_xor_sync(0xffffffff, larger, 2));
            const float shrink = power_of_two(largest[half] - larger);
            largest[half] = larger;
            total[half] *= shrink;
            #pragma unroll
            for (int n = 0; n < $KEYS / 8; ++n) {
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& weight = scores[n][2 * half + i];
                    weight = power_of_two(weight - larger);
                    total[half] += weight;
                }
            }
            #pragma unroll
            for (int d = 0; d < $DIMS / 8; ++d) {
                sums[d][2 * half] *= shrink;
                sums[d][2 * half + 1] *= shrink;
            }
        }
        __pipeline_wait_prior(1);
        __syncthreads();
        #pragma unroll
        for (int n = 0; n < $KEYS / 16; ++n) {
            unsigned weights[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                weights[i] = packed(scores[2 * n + i / 2][i % 2 * 2], scores[2 * n + i / 2][i % 2 * 2 + 1]);
            }
            #pragma unroll
            for (int d = 0; d < $DIMS / 16; ++d) {
                unsigned value_parts[4];
                load_transposed(value_parts, &value_tile[n * 16 + lane % 16][d * 16 + lane / 16 * 8]);
                multiply(sums[2 * d], weights, value_parts[0], value_parts[1]);
                multiply(sums[2 * d + 1], weights, value_parts[2], value_parts[3]);
            }
        }
        __syncthreads();
        if (key0 + $KEYS < end) {
            stage(value_tile, values + head, key0 + $KEYS, length, out0, dim);
        }
        __pipeline_commit();
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = row + half * 8;
        float divisor = total[half];
        divisor += __shfl_xor_sync(0xffffffff, divisor, 1);
        divisor += __shfl_xor_sync(0xffffffff, divisor, 2);
        #pragma unroll
        for (int d = 0; d < $DIMS / 8; ++d) {
            for (int i = 0; i < 2; ++i) {
                const int at = out0 + d * 8 + column + i;
                if (query < length && at < dim) {
                    out[head + query * dim + at] = $from_float(sums[d][2 * half + i] / divisor);
                }
            }
        }
    }
}

} // namespace $space
