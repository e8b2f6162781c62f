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
    };

    __device__ __forceinline__ Line line(int number) const {
        return {data + number * stride, number < lines ? terms : 0, vector};
    }
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
    };

    __device__ __forceinline__ Line line(int number) const {
        return {data + number, lines - number, terms, stride, vector};
    }
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

// The part of a matrix that a block of 256 threads ranges over or packs: 32 lines and STRIP terms, of a batch of matrices.
struct Part {
    int line, term, batch;

    __device__ __forceinline__ Part(int lines, int terms, int block) {
        const int down = (lines + 31) / 32, across = (terms + STRIP - 1) / STRIP;
        line = block % down * 32;
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

// Two numbers as high and low fp16; what is beyond fp16 beside an infinity is its largest number.
__device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low) {
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

// ---- Products of packed matrices on the tensor cores ----------------------------------------------------------------------

// The tile of a block: its first row and column, and the matrix of a batch that it belongs to.
struct Tile {
    int row, column, batch;
};

// Tiles in an order in which blocks that run together share operands: down GROUP rows of tiles, then to the next column.
template <int M, int N, int GROUP>
__device__ __forceinline__ Tile tile(int rows, int columns, int block) {
    const int down = (rows + M - 1) / M, across = (columns + N - 1) / N;
    const int place = block % (down * across), strip = place / (GROUP * across);
    const int height = min(GROUP, down - strip * GROUP), within = place - strip * GROUP * across;
    return {(strip * GROUP + within % height) * M, within / height * N, block / (down * across)};
}

// A packed matrix: at(line)(step) is where a step of a line is, counted in steps from the beginning, or -1 for zeros;
// range_of(line) is the line's range.
template <class At, class RangeOf>
struct Packed {
    using Line = decltype(((At*)nullptr)->operator()(0));
    const __half* data;
    const unsigned* ranges;
    int lines;
    At at;
    RangeOf range_of;

    __device__ __forceinline__ unsigned range(int line) const { return line < lines ? ranges[range_of(line)] : 0; }
};

template <class At, class RangeOf>
__device__ __forceinline__ Packed<At, RangeOf> packed(const __half* data, const unsigned* ranges, int lines, At at,
        RangeOf range_of) {
    return {data, ranges, lines, at, range_of};
}

template <int... I>
struct Indices {};

template <int N, int... I>
struct Count : Count<N - 1, N - 1, I...> {};

template <int... I>
struct Count<0, I...> : Indices<I...> {};

// What a thread copies of a step of LINES lines to shared memory: 16 bytes each of some lines, with the 128-byte swizzle.
template <int LINES, int THREADS, class Operand>
struct Copies {
    static constexpr int COUNT = LINES * 8 / THREADS;
    static_assert(COUNT * THREADS == LINES * 8, "Lines must be shared evenly among the threads");

    const Operand& from;
    int first;
    typename Operand::Line lines[COUNT];

    __device__ __forceinline__ Copies(const Operand& operand, int line) : Copies(operand, line, Count<COUNT>()) {}

    template <int... I>
    __device__ __forceinline__ Copies(const Operand& operand, int line, Indices<I...>)
        : from(operand), first(line), lines{operand.at(min(line + own(I), operand.lines - 1))...} {}

    static __device__ __forceinline__ int own(int i) { return threadIdx.x / 8 + i * (THREADS / 8); }

    __device__ __forceinline__ void copy(unsigned to, int step) const {
        const int chunk = threadIdx.x & 7;
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int l = own(i), place = first + l < from.lines ? lines[i](step) : -1;
            const __half* at = from.data + (long long)max(place, 0) * PACKED + chunk * 8;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         ::"r"(to + l * 128 + ((chunk ^ (l & 7)) << 4)), "l"(at), "r"(place < 0 ? 0 : 16) : "memory");
        }
    }
};

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

template <int UNFINISHED, int COUNT>
__device__ __forceinline__ void wait(float (&)[COUNT]) {}

__device__ __forceinline__ void publish() {}
#endif

// The row and column, within a tile, of a thread's sum.
__device__ __forceinline__ int row_of(int i) {
    return (threadIdx.x >> 5) * 16 + (i >> 1 & 1) * 8 + ((threadIdx.x & 31) >> 2);
}

__device__ __forceinline__ int column_of(int i) {
    return (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1);
}

// An element's product in fp32 arithmetic, from packed numbers: for infinities, whose pairs the tensor cores can't multiply.
template <class A, class B>
__device__ __forceinline__ float exact_product(const A& a, const B& b, int row, int column, int first_step, int last_step) {
    const auto a_line = a.at(row);
    const auto b_line = b.at(column);
    float sum = 0.0f;
    for (int step = first_step; step < last_step; ++step) {
        const int a_place = a_line(step), b_place = b_line(step);
        for (int k = 0; k < STEP; ++k) {
            const __half* x = a.data + (long long)a_place * PACKED + k;
            const __half* y = b.data + (long long)b_place * PACKED + k;
            const float left = a_place < 0 ? 0.0f : __half2float(x[0]) + __half2float(x[STEP]);
            const float right = b_place < 0 ? 0.0f : __half2float(y[0]) + __half2float(y[STEP]);
            sum = fmaf(left, right, sum);
        }
    }
    return sum;
}

// A block's tile of A B for some steps, by 2 M threads. A thread has the sums of row_of(i) and column_of(i). `shared` has
// STAGES * (M + N) * 128 + 1024 bytes.
//
// Tensor cores cut off what doesn't fit a sum's 24 bits. So that this doesn't add up, sums of WINDOW steps are added to the
// result in fp32.
template <int M, int N, int STAGES, class A, class B>
__device__ __forceinline__ void multiply(float (&result)[N / 2], unsigned char* shared, const A& a, const B& b, Tile tile,
        int first_step, int last_step) {
    static_assert(M % 64 == 0 && (N == 64 || N == 128 || N == 192), "Tiles are 64 or 128 x 64, 128 or 192");
    constexpr int STAGE = (M + N) * 128, WINDOW = 4, AHEAD = STAGES - 2;
    static_assert(AHEAD >= 1, "Products of two stages may be unfinished while another one is written");
    const Copies<M, 2 * M, A> from_a(a, tile.row);
    const Copies<N, 2 * M, B> from_b(b, tile.column);
    const unsigned memory = ((unsigned)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
    unsigned next = memory, stage = memory;
    auto copy = [&](int step) {
        if (step < last_step) {
            from_a.copy(next, step);
            from_b.copy(next + M * 128, step);
            next = next == memory + (STAGES - 1) * STAGE ? memory : next + STAGE;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float sum[N / 2];
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        result[i] = 0.0f;
    }
    for (int step = first_step; step < first_step + AHEAD; ++step) {
        copy(step);
    }
    bool adds = false;
    #pragma unroll 1
    for (int step = first_step; step < last_step; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        publish();
        __syncthreads();
        // Into a stage whose products everyone has waited for.
        copy(step + AHEAD);
        products<M, N>(sum, stage, adds);
        stage = stage == memory + (STAGES - 1) * STAGE ? memory : stage + STAGE;
        // Warp groups add at different times, so that the tensor cores have something to do.
        adds = (step + 2 * (threadIdx.x >> 7)) % WINDOW != WINDOW - 1 && step != last_step - 1;
        if (adds) {
            wait<1>(sum);
        } else {
            wait<0>(sum);
            #pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                result[i] += sum[i];
            }
        }
    }
    // The exponents of the tile's rows and columns, where the stages were.
    constexpr int INFINITELY = 1 << 16;
    __syncthreads();
    int* exponents = reinterpret_cast<int*>(shared);
    for (int i = threadIdx.x; i < M + N; i += 2 * M) {
        const unsigned range = i < M ? a.range(tile.row + i) : b.range(tile.column + i - M);
        exponents[i] = range >= INFINITE ? INFINITELY : -exponent_of(range);
    }
    __syncthreads();
    bool exactly = false;
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        const int exponent = exponents[row_of(i)] + exponents[M + column_of(i)];
        exactly |= exponent >= INFINITELY / 2;
        result[i] = result[i] * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
    }
    #pragma unroll 1
    for (int i = 0; exactly && i < N / 2; ++i) {
        const int row = row_of(i), column = column_of(i), exponent = exponents[row] + exponents[M + column];
        if (exponent >= INFINITELY / 2 && tile.row + row < a.lines && tile.column + column < b.lines) {
            const float found = exact_product(a, b, tile.row + row, tile.column + column, first_step, last_step);
            #pragma unroll
            for (int j = 0; j < N / 2; ++j) {
                result[j] = j == i ? found : result[j];
            }
        }
    }
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
