// Building blocks of fast kernels, for NVRTC and nvcc, sm_80 and later. docs/blocks.md describes them.
#pragma once

#include <cuda_fp16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLOCKS_WGMMA 1
#else
#define BLOCKS_WGMMA 0
#endif

namespace blocks {

// ---- Matrices -----------------------------------------------------------------------------------------------------------
// A matrix has `lines` (rows of A, columns of B) and `terms`, over which a product sums. Its `line(number).four(term)` are four
// neighbours, zeros beyond the edges: of the terms of one line where BY_TERM is true, else of one term of four lines.

// Four neighbours of `left` that are left in memory; `vector` says that they may be read at once.
__device__ __forceinline__ float4 load_four(const float* at, int left, bool vector) {
    if (vector && left >= 4) {
        return *reinterpret_cast<const float4*>(at);
    }
    return make_float4(left > 0 ? at[0] : 0.0f, left > 1 ? at[1] : 0.0f, left > 2 ? at[2] : 0.0f, left > 3 ? at[3] : 0.0f);
}

__device__ __forceinline__ bool is_aligned(const float* data, long long stride) {
    return ((size_t)data & 15) == 0 && stride % 4 == 0;
}

// A matrix in memory whose terms are contiguous; `stride` is the distance of two lines.
struct ByTerm {
    static constexpr bool BY_TERM = true;
    const float* data;
    int lines, terms;
    long long stride;
    bool vector = is_aligned(data, stride);

    struct Line {
        const float* at;
        int terms;
        bool vector;

        __device__ __forceinline__ float4 four(int term) const { return load_four(at + term, terms - term, vector); }

        __device__ __forceinline__ float operator()(int term) const { return term < terms ? at[term] : 0.0f; }
    };

    __device__ __forceinline__ Line line(int number) const {
        return {data + number * stride, number < lines ? terms : 0, vector};
    }

    __device__ __forceinline__ long long line_stride() const { return stride; }
    __device__ __forceinline__ long long term_stride() const { return 1; }
};

// A matrix in memory whose lines are contiguous; `stride` is the distance of two terms.
struct ByLine {
    static constexpr bool BY_TERM = false;
    const float* data;
    int lines, terms;
    long long stride;
    bool vector = is_aligned(data, stride);

    struct Line {
        const float* at;
        int left, terms;
        long long stride;
        bool vector;

        __device__ __forceinline__ float4 four(int term) const {
            return load_four(at + term * stride, term < terms ? left : 0, vector);
        }

        __device__ __forceinline__ float operator()(int term) const {
            return term < terms && left > 0 ? at[term * stride] : 0.0f;
        }
    };

    __device__ __forceinline__ Line line(int number) const {
        return {data + number, lines - number, terms, stride, vector};
    }

    __device__ __forceinline__ long long line_stride() const { return 1; }
    __device__ __forceinline__ long long term_stride() const { return stride; }
};

// Elements that functions give: at(line)(term).
template <class At>
struct Computed {
    static constexpr bool BY_TERM = false;
    using Element = decltype(((At*)nullptr)->operator()(0));
    At at;
    int lines, terms;

    struct Line {
        Element elements[4];
        int left, terms;

        __device__ __forceinline__ float4 four(int term) const {
            const int inside = term < terms ? left : 0;
            return make_float4(inside > 0 ? elements[0](term) : 0.0f, inside > 1 ? elements[1](term) : 0.0f,
                inside > 2 ? elements[2](term) : 0.0f, inside > 3 ? elements[3](term) : 0.0f);
        }

        __device__ __forceinline__ float operator()(int term) const {
            return term < terms && left > 0 ? elements[0](term) : 0.0f;
        }
    };

    __device__ __forceinline__ Line line(int number) const {
        return {{at(number), at(number + 1), at(number + 2), at(number + 3)}, lines - number, terms};
    }
};

template <class At>
__device__ __forceinline__ Computed<At> computed(int lines, int terms, At at) {
    return {at, lines, terms};
}

// ---- Pairs of fp16 --------------------------------------------------------------------------------------------------------
// An fp32 number as the sum of two fp16, high and low, has 22 bits: low x high + high x low + high x high are three products at
// the fp16 rate with an error near that of fp32 (Ootomo and Yokota 2022). Packed, a step of 32 terms of a line has 128 bytes: 32
// high parts, then 32 low ones. Lines are scaled by powers of two, so that the largest number of each range is between 2^14 and
// 2^15; a range is a line, or several that belong together.

constexpr int STEP = 32;
constexpr int PACKED = 2 * STEP;
constexpr int STRIP = 8 * STEP;
constexpr unsigned INFINITE = 0x7f800000;

// The part of a matrix that a block of 256 threads ranges over or packs: 32 lines and STRIP terms, of a batch of matrices; or LINES
// lines, where packed tiles are made.
struct Part {
    int line, term, batch;

    __device__ __forceinline__ Part(int lines, int terms, int block, int height = 32) {
        const int down = (lines + height - 1) / height, across = (terms + STRIP - 1) / STRIP;
        line = block % down * height;
        term = block / down % across * STRIP;
        batch = block / (down * across);
    }
};

using Square = float[32][33];

template <class Matrix>
__device__ __forceinline__ void load_square(Square& to, const Matrix& from, int line, int term) {
    const int across = (threadIdx.x & 7) * 4, down = threadIdx.x >> 3;
    if (Matrix::BY_TERM) {
        const float4 v = from.line(line + down).four(term + across);
        to[down][across] = v.x, to[down][across + 1] = v.y, to[down][across + 2] = v.z, to[down][across + 3] = v.w;
    } else {
        const float4 v = from.line(line + across).four(term + down);
        to[across][down] = v.x, to[across + 1][down] = v.y, to[across + 2][down] = v.z, to[across + 3][down] = v.w;
    }
}

// Raise `ranges`, which begin as zeros, to the largest magnitudes of a part, as bits. `range_of(line)` is a line's.
template <class Matrix, class RangeOf>
__device__ __forceinline__ void find_ranges(unsigned* ranges, const Matrix& from, Part part, int terms, RangeOf range_of) {
    __shared__ Square square;
    const int line = threadIdx.x >> 3, term = (threadIdx.x & 7) * 4;
    unsigned most = 0;
    for (int k = part.term; k < min(part.term + STRIP, terms); k += STEP) {
        __syncthreads();
        load_square(square, from, part.line, k);
        __syncthreads();
        for (int i = 0; i < 4; ++i) {
            most = max(most, __float_as_uint(square[line][term + i]) & 0x7fffffff);
        }
    }
    const int range = range_of(part.line + line);
    const bool same = __all_sync(0xffffffff, range == __shfl_sync(0xffffffff, range, 0));
    for (int apart = 1; apart < (same ? 32 : 8); apart *= 2) {
        most = max(most, __shfl_xor_sync(0xffffffff, most, apart));
    }
    if (threadIdx.x % (same ? 32 : 8) == 0 && part.line + line < from.lines) {
        // Most are no larger than what others found.
        if (most > *(volatile unsigned*)(ranges + range)) {
            atomicMax(ranges + range, most);
        }
    }
}

// The power of two that a range's numbers are multiplied by. It is 0 for a range with infinities.
__device__ __forceinline__ int exponent_of(unsigned range) {
    return range >= INFINITE ? 0 : 14 - (max((int)(range >> 23), 27) - 127);
}

__device__ __forceinline__ float power_of_two(int exponent) {
    return __int_as_float((exponent + 127) << 23);
}

// Two numbers as high and low fp16. What is beyond fp16 beside an infinity is its largest number, or, unless GUARDED, none.
template <bool GUARDED = true>
__device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low) {
    if (!GUARDED) {
        const __half2 h = __floats2half2_rn(x, y);
        const float2 back = __half22float2(h);
        const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
        high = *reinterpret_cast<const unsigned*>(&h);
        low = *reinterpret_cast<const unsigned*>(&l);
        return;
    }
    const float a = fabsf(x) < __int_as_float(INFINITE) ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x;
    const float b = fabsf(y) < __int_as_float(INFINITE) ? fminf(fmaxf(y, -65504.0f), 65504.0f) : y;
    const __half2 h = __floats2half2_rn(a, b);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(a == back.x || !(fabsf(a) <= 65504.0f) ? 0.0f : a - back.x,
        b == back.y || !(fabsf(b) <= 65504.0f) ? 0.0f : b - back.y);
    high = *reinterpret_cast<const unsigned*>(&h);
    low = *reinterpret_cast<const unsigned*>(&l);
}

// Pack a part: `to` has `lines` of `steps` steps.
template <class Matrix, class RangeOf>
__device__ __forceinline__ void pack(__half* to, const unsigned* ranges, const Matrix& from, Part part, int terms, int steps,
        RangeOf range_of) {
    __shared__ Square square;
    const int line = threadIdx.x >> 3, term = (threadIdx.x & 7) * 4;
    const bool inside = part.line + line < from.lines;
    const float scale = power_of_two(inside ? exponent_of(ranges[range_of(part.line + line)]) : 0);
    __half* at = to + ((long long)(part.line + line) * steps + part.term / STEP) * PACKED + term;
    for (int k = part.term; k < min(part.term + STRIP, terms); k += STEP, at += PACKED) {
        __syncthreads();
        load_square(square, from, part.line, k);
        __syncthreads();
        const float* v = square[line] + term;
        uint2 high, low;
        split(v[0] * scale, v[1] * scale, high.x, low.x);
        split(v[2] * scale, v[3] * scale, high.y, low.y);
        if (inside) {
            *reinterpret_cast<uint2*>(at) = high;
            *reinterpret_cast<uint2*>(at + STEP) = low;
        }
    }
}

// ---- Packed tiles -----------------------------------------------------------------------------------------------------------
// A packed matrix whose tiles one bulk copy brings: blocks of 64 lines; in a block its steps one after the other, 8 KiB each, with
// the 128-byte swizzle that the tensor cores read.

constexpr int LINES = 64;

// Where 8 terms of a line are in a step of a block, in bytes.
__device__ __forceinline__ int swizzled(int line, int chunk) {
    return line * 128 + ((chunk ^ (line & 7)) << 4);
}

// Eight neighbours of a line.
template <class Matrix>
__device__ __forceinline__ void load_eight(float (&to)[8], const typename Matrix::Line& line, int term) {
    if constexpr (Matrix::BY_TERM) {
        const float4 v = line.four(term), w = line.four(term + 4);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w, to[4] = w.x, to[5] = w.y, to[6] = w.z, to[7] = w.w;
    } else {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            to[i] = line(term + i);
        }
    }
}

__device__ __forceinline__ unsigned largest(const float (&v)[8]) {
    unsigned most = 0;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        most = max(most, __float_as_uint(v[i]) & 0x7fffffff);
    }
    return most;
}

template <bool GUARDED = true>
__device__ __forceinline__ void split_eight(const float (&v)[8], float scale, uint4& high, uint4& low) {
    split<GUARDED>(v[0] * scale, v[1] * scale, high.x, low.x);
    split<GUARDED>(v[2] * scale, v[3] * scale, high.y, low.y);
    split<GUARDED>(v[4] * scale, v[5] * scale, high.z, low.z);
    split<GUARDED>(v[6] * scale, v[7] * scale, high.w, low.w);
}

// Raise `ranges`, which begin as zeros, to the largest magnitudes of a part's lines, as bits.
template <class Matrix>
__device__ __forceinline__ void find_ranges_of_lines(unsigned* ranges, const Matrix& from, Part part, int terms) {
    const int number = part.line + (Matrix::BY_TERM ? threadIdx.x >> 2 : threadIdx.x & 63);
    const int term = part.term + (Matrix::BY_TERM ? threadIdx.x & 3 : threadIdx.x >> 6) * 8;
    const typename Matrix::Line line = from.line(number);
    unsigned most = 0;
    #pragma unroll 4
    for (int i = 0; i < STRIP; i += STEP) {
        float v[8];
        load_eight<Matrix>(v, line, term + i);
        most = max(most, largest(v));
    }
    if (Matrix::BY_TERM) {
        most = max(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = max(most, __shfl_xor_sync(0xffffffff, most, 2));
    }
    if (number < from.lines && (!Matrix::BY_TERM || threadIdx.x % 4 == 0)) {
        // Most are no larger than what others found.
        if (most > *(volatile unsigned*)(ranges + number)) {
            atomicMax(ranges + number, most);
        }
    }
}

// Pack a part as tiles.
template <class Matrix>
__device__ __forceinline__ void pack_tiles(__half* to, const unsigned* ranges, const Matrix& from, Part part, int terms,
        int steps) {
    const int down = Matrix::BY_TERM ? threadIdx.x >> 2 : threadIdx.x & 63, number = part.line + down;
    const int chunk = Matrix::BY_TERM ? threadIdx.x & 3 : threadIdx.x >> 6;
    const typename Matrix::Line line = from.line(number);
    const float scale = power_of_two(number < from.lines ? exponent_of(ranges[number]) : 0);
    const int first = part.term / STEP, high_at = swizzled(down, chunk), low_at = swizzled(down, chunk + 4);
    unsigned char* at = reinterpret_cast<unsigned char*>(to) + ((long long)(part.line / LINES) * steps + first) * (LINES * 128);
    #pragma unroll 4
    for (int i = 0; i < STRIP; i += STEP, at += LINES * 128) {
        float v[8];
        uint4 high, low;
        load_eight<Matrix>(v, line, part.term + chunk * 8 + i);
        split_eight(v, scale, high, low);
        if (first + i / STEP < steps) {
            *reinterpret_cast<uint4*>(at + high_at) = high;
            *reinterpret_cast<uint4*>(at + low_at) = low;
        }
    }
}

// ---- Products of packed matrices on the tensor cores ----------------------------------------------------------------------

// The tile of a block: its first row and column, and the matrix of a batch that it belongs to.
struct Tile {
    int row, column, batch;
};

// Tiles in an order in which blocks that run together share operands: down GROUP rows of tiles, then to the next column.
// Those of a cluster are one below the other.
template <int M, int N, int GROUP, int CLUSTER = 1>
__device__ __forceinline__ Tile tile(int rows, int columns, int block) {
    const int own = block % CLUSTER, down = (rows + CLUSTER * M - 1) / (CLUSTER * M), across = (columns + N - 1) / N;
    block /= CLUSTER;
    const int place = block % (down * across), strip = place / (GROUP * across);
    const int height = min(GROUP, down - strip * GROUP), within = place - strip * GROUP * across;
    return {((strip * GROUP + within % height) * CLUSTER + own) * M, within / height * N, block / (down * across)};
}

template <int... I>
struct Indices {};

template <int N, int... I>
struct Count : Count<N - 1, N - 1, I...> {};

template <int... I>
struct Count<0, I...> : Indices<I...> {};

// Who does what in a block of 2 M + PRODUCERS threads: M / 64 warp groups multiply, and another one brings the operands.
constexpr int PRODUCERS = 128;

// ---- Barriers in shared memory, and bulk copies

#if BLOCKS_WGMMA
__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At the barrier in the same place of a block of the cluster.
__device__ __forceinline__ void arrive_at(unsigned barrier, unsigned block) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];}"
                 ::"r"(barrier), "r"(block) : "memory");
}

__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    asm volatile("{.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
}

// To this block, or to both of a cluster of two.
template <int CLUSTER>
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
    if constexpr (CLUSTER == 1) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], %2, [%3], %4;"
                     ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
    }
}

__device__ __forceinline__ unsigned block_of_cluster() {
    unsigned number;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}

template <int CLUSTER>
__device__ __forceinline__ void synchronize_cluster() {
    if constexpr (CLUSTER > 1) {
        asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    }
}
#endif

__device__ __forceinline__ void copy_16(unsigned to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void store_16(unsigned to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- Operands: how the producers bring a step of some lines into shared memory, as lines of 128 bytes with the 128-byte swizzle

// Packed tiles.
struct Tiles {
    static constexpr bool LATE = !BLOCKS_WGMMA;
    static constexpr int SPARE = 0;
    const __half* data;
    const unsigned* ranges;
    int lines, steps;

    __device__ __forceinline__ float element(int line, int term) const {
        const __half* at = data + ((long long)(line / LINES) * steps + term / STEP) * (LINES * PACKED) + term % 8;
        const int down = line % LINES, chunk = term / 8 % 4;
        const float both = __half2float(at[swizzled(down, chunk) / 2]) + __half2float(at[swizzled(down, chunk + 4) / 2]);
        return both * power_of_two(-exponent_of(ranges[line]));
    }

    // Tell a line's range, all threads together.
    template <int COUNT>
    __device__ __forceinline__ void tell(unsigned* to, int first, int, int) const {
        for (int i = threadIdx.x; i < min(COUNT, lines - first); i += blockDim.x) {
            to[i] = ranges[first + i];
        }
    }

    template <int COUNT, int CLUSTER>
    struct Copies {
        const unsigned char* from;
        long long block;
        int blocks, left, bytes;

        __device__ __forceinline__ Copies(const Tiles& tiles, int first, int, const unsigned*) {
            from = reinterpret_cast<const unsigned char*>(tiles.data) + (long long)(first / LINES) * tiles.steps * (LINES * 128);
            block = (long long)tiles.steps * (LINES * 128);
            left = tiles.lines - first;
            blocks = max(0, min(COUNT / LINES, (left + LINES - 1) / LINES));
            bytes = BLOCKS_WGMMA ? blocks * LINES * 128 : 0;
        }

        __device__ __forceinline__ void copy(unsigned to, unsigned barrier, int step, bool) {
#if BLOCKS_WGMMA
            if (threadIdx.x % PRODUCERS == 0) {
                // Blocks of a cluster bring a part for all of them.
                constexpr int PART = LINES * 128 / CLUSTER;
                const int part = CLUSTER > 1 ? block_of_cluster() * PART : 0;
                for (int i = 0; i < blocks; ++i) {
                    bulk_copy<CLUSTER>(to + i * (LINES * 128) + part,
                        from + i * block + (long long)step * (LINES * 128) + part, PART, barrier);
                }
            }
#else
            for (int i = threadIdx.x % PRODUCERS; i < COUNT * 8; i += PRODUCERS) {
                const int line = i >> 3, at = i * 16;
                const bool inside = line < left;
                copy_16(to + at, from + (inside ? line / LINES * block + step * (LINES * 128) + at % (LINES * 128) : 0), inside);
            }
#endif
        }
    };
};

// Packed lines, of which at(line)(step) is where a step is, counted in steps from the beginning, or -1 for zeros; range_of(line) is
// the line's range.
template <class At, class RangeOf>
struct Packed {
    static constexpr bool LATE = true;
    static constexpr int SPARE = 0;
    using Line = decltype(((At*)nullptr)->operator()(0));
    const __half* data;
    const unsigned* ranges;
    int lines;
    At at;
    RangeOf range_of;

    __device__ __forceinline__ float element(int line, int term) const {
        const int place = at(line)(term / STEP);
        const __half* x = data + (long long)place * PACKED + term % STEP;
        return place < 0 ? 0.0f
                         : (__half2float(x[0]) + __half2float(x[STEP])) * power_of_two(-exponent_of(ranges[range_of(line)]));
    }

    template <int COUNT>
    __device__ __forceinline__ void tell(unsigned* to, int first, int, int) const {
        for (int i = threadIdx.x; i < min(COUNT, lines - first); i += blockDim.x) {
            to[i] = ranges[range_of(first + i)];
        }
    }

    template <int COUNT, int CLUSTER>
    struct Copies {
        static_assert(CLUSTER == 1, "Blocks of a cluster share tiles alone");
        static constexpr int OWN = COUNT * 8 / PRODUCERS, bytes = 0;
        const Packed& from;
        int first;
        Line lines[OWN];

        __device__ __forceinline__ Copies(const Packed& operand, int line, int, const unsigned*)
            : Copies(operand, line, Count<OWN>()) {}

        template <int... I>
        __device__ __forceinline__ Copies(const Packed& operand, int line, Indices<I...>)
            : from(operand), first(line), lines{operand.at(min(line + own(I), operand.lines - 1))...} {}

        static __device__ __forceinline__ int own(int i) { return threadIdx.x % PRODUCERS / 8 + i * (PRODUCERS / 8); }

        __device__ __forceinline__ void copy(unsigned to, unsigned, int step, bool) {
            const int chunk = threadIdx.x & 7;
            #pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int l = own(i), place = first + l < from.lines ? lines[i](step) : -1;
                const __half* at = from.data + (long long)max(place, 0) * PACKED + chunk * 8;
                copy_16(to + swizzled(l, chunk), at, place >= 0);
            }
        }
    };
};

template <class At, class RangeOf>
__device__ __forceinline__ Packed<At, RangeOf> packed(const __half* data, const unsigned* ranges, int lines, At at,
        RangeOf range_of) {
    return {data, ranges, lines, at, range_of};
}

// An fp32 matrix as it is, packed on its way into shared memory. A line's range is that of its first numbers, with 8 bits to spare;
// where larger numbers follow, sums are no numbers, and those elements are computed in fp32 arithmetic.
template <class Matrix>
struct Unpacked {
    static constexpr bool LATE = false;
    static constexpr int SPARE = 8;
    Matrix matrix;
    int lines;

    __device__ __forceinline__ float element(int line, int term) const { return matrix.line(line)(term); }

    // Each thread looks at 8 terms of a line, of the first step in which they aren't all zeros.
    template <int COUNT>
    __device__ __forceinline__ void tell(unsigned* to, int first, int first_step, int last_step) const {
        for (int i = threadIdx.x; i < COUNT * 4; i += blockDim.x) {
            const int own = Matrix::BY_TERM ? i / 4 : i % COUNT, chunk = Matrix::BY_TERM ? i % 4 : i / COUNT;
            const typename Matrix::Line line = matrix.line(first + own);
            unsigned most = 0;
            for (int step = first_step; most == 0 && step < last_step && first + own < lines; ++step) {
                float v[8];
                load_eight<Matrix>(v, line, step * STEP + chunk * 8);
                most = largest(v);
            }
            atomicMax(to + own, most);
        }
    }

    template <int COUNT, int CLUSTER>
    struct Copies {
        static_assert(CLUSTER == 1, "Blocks of a cluster share tiles alone");
        static constexpr int OWN = COUNT / 32, bytes = 0;
        const Matrix& matrix;
        const float* at;
        int first, offsets[OWN];
        float scales[OWN], next[OWN][8];

        // Neighbouring threads write to different banks.
        static __device__ __forceinline__ int own(int i) {
            const int slot = threadIdx.x % PRODUCERS >> 2;
            return i * 32 + (Matrix::BY_TERM ? (slot & ~7) | (slot & 7) >> 1 | (slot & 1) << 2 : threadIdx.x & 31);
        }

        static __device__ __forceinline__ int chunk() {
            return Matrix::BY_TERM ? threadIdx.x & 3 : threadIdx.x % PRODUCERS >> 5;
        }

        __device__ __forceinline__ Copies(const Unpacked& operand, int line, int first_step, const unsigned* ranges)
            : matrix(operand.matrix), first(min(line, operand.lines - 1)) {
            at = matrix.data + first * matrix.line_stride() + chunk() * 8 * matrix.term_stride();
            #pragma unroll
            for (int i = 0; i < OWN; ++i) {
                // What is beyond the last line is as good as anything.
                offsets[i] = min(own(i), operand.lines - 1 - first) * (int)matrix.line_stride();
            }
            if (is_ahead(first_step)) {
                #pragma unroll
                for (int i = 0; i < OWN; ++i) {
                    load(i, at + first_step * STEP * matrix.term_stride());
                }
            }
            #pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const unsigned range = ranges[own(i)];
                scales[i] = power_of_two(exponent_of(range) - (range >= INFINITE ? 0 : SPARE));
            }
        }

        // Whether a step is read ahead: it has no edge.
        __device__ __forceinline__ bool is_ahead(int step) const {
            return (step + 1) * STEP <= matrix.terms && (!Matrix::BY_TERM || matrix.vector);
        }

        __device__ __forceinline__ void load(int i, const float* from) {
            if constexpr (Matrix::BY_TERM) {
                const float4* four = reinterpret_cast<const float4*>(from + offsets[i]);
                const float4 v = four[0], w = four[1];
                next[i][0] = v.x, next[i][1] = v.y, next[i][2] = v.z, next[i][3] = v.w;
                next[i][4] = w.x, next[i][5] = w.y, next[i][6] = w.z, next[i][7] = w.w;
            } else {
                #pragma unroll
                for (int j = 0; j < 8; ++j) {
                    next[i][j] = from[j * matrix.stride + offsets[i]];
                }
            }
        }

        static __device__ __forceinline__ void put(unsigned to, int line, const float (&v)[8], float scale) {
            uint4 high, low;
            split_eight<false>(v, scale, high, low);
            const int place = swizzled(line, chunk());
            store_16(to + place, high);
            store_16(to + (place ^ 64), low);
        }

        // Bring a step, and begin to read the next one.
        __device__ __forceinline__ void copy(unsigned to, unsigned, int step, bool more) {
            if (!is_ahead(step)) {
                #pragma unroll 1
                for (int i = 0; i < OWN; ++i) {
                    float v[8];
                    load_eight<Matrix>(v, matrix.line(first + own(i)), step * STEP + chunk() * 8);
                    put(to, own(i), v, scale_of(i));
                }
            } else if (more && is_ahead(step + 1)) {
                const float* from = at + (step + 1) * STEP * matrix.term_stride();
                #pragma unroll
                for (int i = 0; i < OWN; ++i) {
                    put(to, own(i), next[i], scales[i]);
                    load(i, from);
                }
            } else {
                #pragma unroll
                for (int i = 0; i < OWN; ++i) {
                    put(to, own(i), next[i], scales[i]);
                }
            }
        }

        __device__ __forceinline__ float scale_of(int which) const {
            float found = scales[0];
            #pragma unroll
            for (int i = 1; i < OWN; ++i) {
                found = which == i ? scales[i] : found;
            }
            return found;
        }
    };
};

template <class Matrix>
__device__ __forceinline__ Unpacked<Matrix> unpacked(const Matrix& matrix) {
    return {matrix, matrix.lines};
}

#if BLOCKS_WGMMA
#define BLOCKS_0_31 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BLOCKS_32_63 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BLOCKS_64_95 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BLOCKS_F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
    "+f"(d[i + 6]), "+f"(d[i + 7])
#define BLOCKS_F32(i) BLOCKS_F8(i), BLOCKS_F8(i + 8), BLOCKS_F8(i + 16), BLOCKS_F8(i + 24)

// One product of a warp group: 64 x 64, 128 or 192 sums of 16 terms of fp16 in shared memory, which descriptors tell of. It
// begins anew unless `adds`.
__device__ __forceinline__ void wgmma(float (&d)[32], unsigned long long a, unsigned long long b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BLOCKS_0_31
                 "}, %32, %33, p, 1, 1, 0, 0;}"
                 : BLOCKS_F32(0) : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void wgmma(float (&d)[64], unsigned long long a, unsigned long long b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" BLOCKS_0_31
                 ", " BLOCKS_32_63 "}, %64, %65, p, 1, 1, 0, 0;}"
                 : BLOCKS_F32(0), BLOCKS_F32(32) : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void wgmma(float (&d)[96], unsigned long long a, unsigned long long b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {" BLOCKS_0_31
                 ", " BLOCKS_32_63 ", " BLOCKS_64_95 "}, %96, %97, p, 1, 1, 0, 0;}"
                 : BLOCKS_F32(0), BLOCKS_F32(32), BLOCKS_F32(64) : "l"(a), "l"(b), "r"(adds));
}

// Of lines of 128 bytes in shared memory with the 128-byte swizzle.
__device__ __forceinline__ unsigned long long descriptor(unsigned start) {
    return (unsigned long long)(start >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Issue the products of a step; `wait` waits until at most so many steps' products are unfinished.
template <int M, int N>
__device__ __forceinline__ void products(float (&sum)[N / 2], unsigned stage, bool adds) {
    const unsigned long long a = descriptor(stage + (threadIdx.x >> 7) * (64 * 128)), b = descriptor(stage + M * 128);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < 4; k += 2) {
        wgmma(sum, a + k + 4, b + k, k > 0 || adds);
        wgmma(sum, a + k, b + k + 4, 1);
        wgmma(sum, a + k, b + k, 1);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int UNFINISHED, int COUNT>
__device__ __forceinline__ void wait(float (&sum)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNFINISHED) : "memory");
    if (UNFINISHED == 0) {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            asm volatile("" : "+f"(sum[i])::"memory");
        }
    }
}

__device__ __forceinline__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Of 64 K registers, blocks of 128 rows give producers 88 a thread and consumers 208.
template <int M>
__device__ __forceinline__ void fewer_registers() {
    if constexpr (M == 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    }
}

template <int M>
__device__ __forceinline__ void more_registers() {
    if constexpr (M == 128) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    }
}
#else
__device__ __forceinline__ void load_fragments(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where a lane finds its 16 bytes of 16 lines and 16 terms: a chunk of 8 terms, of the first or second 8 lines.
__device__ __forceinline__ unsigned fragment(unsigned lines, int line, int chunk) {
    line += threadIdx.x & 7;
    return lines + line * 128 + ((chunk ^ (line & 7)) << 4);
}

template <int M, int N>
__device__ __forceinline__ void products(float (&sum)[N / 2], unsigned stage, bool adds) {
    const int line = (threadIdx.x >> 5) * 16, first = threadIdx.x >> 3 & 1, second = threadIdx.x >> 4 & 1;
    if (!adds) {
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            sum[i] = 0.0f;
        }
    }
    #pragma unroll
    for (int k = 0; k < 4; k += 2) {
        unsigned high_a[4], low_a[4], high_b[4], low_b[4];
        const unsigned from_a = fragment(stage, line + first * 8, k + second);
        load_fragments(high_a, from_a);
        load_fragments(low_a, from_a ^ 64);
        #pragma unroll
        for (int n = 0; n < N; n += 16) {
            const unsigned from_b = fragment(stage + M * 128, n + second * 8, k + first);
            load_fragments(high_b, from_b);
            load_fragments(low_b, from_b ^ 64);
            #pragma unroll
            for (int part = 0; part < 2; ++part) {
                float* d = sum + n / 2 + 4 * part;
                mma(d, low_a, high_b[2 * part], high_b[2 * part + 1]);
                mma(d, high_a, low_b[2 * part], low_b[2 * part + 1]);
                mma(d, high_a, high_b[2 * part], high_b[2 * part + 1]);
            }
        }
    }
}

#endif

// The row and column, within a tile, of a thread's sum.
__device__ __forceinline__ int row_of(int i) {
    return (threadIdx.x >> 5) * 16 + (i >> 1 & 1) * 8 + ((threadIdx.x & 31) >> 2);
}

__device__ __forceinline__ int column_of(int i) {
    return (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1);
}

// An element's product in fp32 arithmetic, for what pairs of fp16 can't tell.
template <class A, class B>
__device__ __forceinline__ float exact_product(const A& a, const B& b, int row, int column, int first_term, int last_term) {
    float sum = 0.0f;
    for (int term = first_term; term < last_term; ++term) {
        sum = fmaf(a.element(row, term), b.element(column, term), sum);
    }
    return sum;
}

// Undo the scaling of sums by their lines' ranges, which are in shared memory, and compute in fp32 what they couldn't tell.
template <int M, int N, class A, class B>
__device__ __forceinline__ void finish(float (&result)[N / 2], const unsigned* ranges, const A& a, const B& b, Tile tile,
        int first_step, int last_step) {
    bool exactly = false;
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        const unsigned left = ranges[row_of(i)], right = ranges[M + column_of(i)];
        const int exponent = A::SPARE + B::SPARE - exponent_of(left) - exponent_of(right);
        result[i] = result[i] * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
        exactly |= max(left, right) >= INFINITE || !(fabsf(result[i]) < __int_as_float(INFINITE));
    }
    if (exactly) {
        float found[N / 2];
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            found[i] = result[i];
        }
        #pragma unroll 1
        for (int i = 0; i < N / 2; ++i) {
            const int row = tile.row + row_of(i), column = tile.column + column_of(i);
            const bool infinite = max(ranges[row_of(i)], ranges[M + column_of(i)]) >= INFINITE;
            if ((infinite || !(fabsf(found[i]) < __int_as_float(INFINITE))) && row < a.lines && column < b.lines) {
                found[i] = exact_product(a, b, row, column, first_step * STEP, last_step * STEP);
            }
        }
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            result[i] = found[i];
        }
    }
}

// A block's tile of A B for some steps, by 2 M + PRODUCERS threads, of which the first 2 M call use(sums) in the end: a thread has
// the sums of row_of(i) and column_of(i). `shared` has STAGES * (M + N) * 128 + 3072 bytes. Blocks of a cluster of two have tiles
// one below the other, and bring packed tiles of B for both.
//
// Tensor cores cut off what doesn't fit a sum's 24 bits. So that this doesn't add up, sums of WINDOW steps are added to the
// result in fp32.
template <int M, int N, int STAGES, int CLUSTER = 1, class A, class B, class Use>
__device__ __forceinline__ void multiply(unsigned char* shared, const A& a, const B& b, Tile tile, int first_step, int last_step,
        Use use) {
    static_assert(M % 64 == 0 && M <= 128 && N % 64 == 0 && N <= 192, "Tiles are 64 or 128 x 64, 128 or 192");
    constexpr int STAGE = (M + N) * 128, WINDOW = 4;
    const unsigned memory = ((unsigned)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
    unsigned* ranges = reinterpret_cast<unsigned*>(shared + (memory - (unsigned)__cvta_generic_to_shared(shared)) + STAGES * STAGE);
    float result[N / 2], sum[N / 2];
    for (int i = threadIdx.x; i < M + N; i += 2 * M + PRODUCERS) {
        ranges[i] = 0;
    }
    __syncthreads();
    a.template tell<M>(ranges, tile.row, first_step, last_step);
    b.template tell<N>(ranges + M, tile.column, first_step, last_step);
#if BLOCKS_WGMMA
    constexpr bool LATE = A::LATE || B::LATE;
    constexpr int LAG = STAGES > 3 ? 2 : 1;
    const unsigned full = memory + STAGES * STAGE + (M + N) * 4, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init_barrier(full + 8 * i, PRODUCERS);
            init_barrier(empty + 8 * i, M / 16 * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    synchronize_cluster<CLUSTER>();
    // The same in all threads of a warp, as the compiler sees.
    const int group = __shfl_sync(0xffffffff, threadIdx.x >> 7, 0);
    if (group == M / 64) {
        fewer_registers<M>();
        typename A::template Copies<M, 1> from_a(a, tile.row, first_step, ranges);
        typename B::template Copies<N, CLUSTER> from_b(b, tile.column, first_step, ranges + M);
        int stage = 0;
        unsigned parity = 1;
        #pragma unroll 1
        for (int step = first_step; step < last_step; ++step) {
            const unsigned to = memory + stage * STAGE, barrier = full + 8 * stage;
            wait_for(empty + 8 * stage, parity);
            if (threadIdx.x == 2 * M && from_a.bytes + from_b.bytes > 0) {
                expect(barrier, from_a.bytes + from_b.bytes);
            }
            from_a.copy(to, barrier, step, step + 1 < last_step);
            from_b.copy(to + M * 128, barrier, step, step + 1 < last_step);
            if (LATE) {
                asm volatile("cp.async.commit_group;\ncp.async.wait_group %0;" ::"n"(LAG) : "memory");
                publish();
                if (step >= first_step + LAG) {
                    arrive(full + 8 * (stage < LAG ? stage + STAGES - LAG : stage - LAG));
                }
            } else {
                publish();
                arrive(barrier);
            }
            parity ^= stage == STAGES - 1;
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        if (LATE) {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            publish();
            for (int step = max(first_step, last_step - LAG); step < last_step; ++step) {
                arrive(full + 8 * ((step - first_step) % STAGES));
            }
        }
        synchronize_cluster<CLUSTER>();
    } else {
        more_registers<M>();
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            result[i] = 0.0f;
        }
        int stage = 0, before = 0, step = first_step;
        unsigned parity = 0;
        // Warp groups add at different times, so that the tensor cores have something to do.
        int until = first_step + (group == 0 ? WINDOW : WINDOW / 2);
        #pragma unroll 1
        while (step < last_step) {
            until = min(until, last_step);
            bool adds = false;
            #pragma unroll 1
            do {
                wait_for(full + 8 * stage, parity);
                products<M, N>(sum, memory + stage * STAGE, adds);
                adds = true;
                wait<1>(sum);
                if (step > first_step && threadIdx.x % 32 < CLUSTER) {
                    if constexpr (CLUSTER == 1) {
                        arrive(empty + 8 * before);
                    } else {
                        arrive_at(empty + 8 * before, threadIdx.x % 32);
                    }
                }
                before = stage;
                parity ^= stage == STAGES - 1;
                stage = stage == STAGES - 1 ? 0 : stage + 1;
            } while (++step < until);
            until += WINDOW;
            wait<0>(sum);
            #pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                result[i] += sum[i];
            }
        }
        finish<M, N>(result, ranges, a, b, tile, first_step, last_step);
        use(result);
        synchronize_cluster<CLUSTER>();
    }
#else
    __syncthreads();
    const bool produces = threadIdx.x >= 2 * M;
    typename A::template Copies<M, 1> from_a(a, tile.row, first_step, ranges);
    typename B::template Copies<N, 1> from_b(b, tile.column, first_step, ranges + M);
    auto copy = [&](int step) {
        if (produces && step < last_step) {
            const unsigned to = memory + (step - first_step) % STAGES * STAGE;
            from_a.copy(to, 0, step, step + 1 < last_step);
            from_b.copy(to + M * 128, 0, step, step + 1 < last_step);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        result[i] = 0.0f;
    }
    for (int step = first_step; step < first_step + STAGES - 1; ++step) {
        copy(step);
    }
    for (int step = first_step; step < last_step; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        // Into the stage of the step before, with which everyone is done.
        copy(step + STAGES - 1);
        if (!produces) {
            products<M, N>(sum, memory + (step - first_step) % STAGES * STAGE, (step - first_step) % WINDOW != 0);
            if ((step - first_step) % WINDOW == WINDOW - 1 || step == last_step - 1) {
                #pragma unroll
                for (int i = 0; i < N / 2; ++i) {
                    result[i] += sum[i];
                }
            }
        }
    }
    if (!produces) {
        finish<M, N>(result, ranges, a, b, tile, first_step, last_step);
        use(result);
    }
#endif
}

// Store value(row, column, sum) of a thread's sums inside of the matrix at to[index(row, column)].
template <int N, class T, class Value, class Index>
__device__ __forceinline__ void store(T* to, const float (&sum)[N], Tile tile, int rows, int columns, Value value, Index index) {
    #pragma unroll
    for (int i = 0; i < N; i += 2) {
        const int row = tile.row + row_of(i), column = tile.column + column_of(i);
        if (row < rows && column + 1 < columns) {
            const T first = value(row, column, sum[i]), second = value(row, column + 1, sum[i + 1]);
            const long long at = index(row, column), next = index(row, column + 1);
            if (sizeof(T) == 4 && next == at + 1 && ((size_t)(to + at) & 7) == 0) {
                *reinterpret_cast<int2*>(to + at) =
                    make_int2(*reinterpret_cast<const int*>(&first), *reinterpret_cast<const int*>(&second));
            } else {
                to[at] = first;
                to[next] = second;
            }
        } else if (row < rows && column < columns) {
            to[index(row, column)] = value(row, column, sum[i]);
        }
    }
}

}  // namespace blocks
