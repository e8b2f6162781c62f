// Building blocks of fast kernels, for NVRTC and nvcc, sm_80 and later. docs/blocks.md describes them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLOCKS_WGMMA 1
#else
#define BLOCKS_WGMMA 0
#endif

namespace blocks {

// ---- Matrices -----------------------------------------------------------------------------------------------------------
// A matrix has `lines` (rows of A, columns of B) and `terms`, over which a product sums. Its `line(number)(term)` is an element,
// zero beyond the edges. BY_TERM says that the terms of a line are neighbours in memory.

__device__ __forceinline__ bool is_aligned(const void* data, long long bytes) {
    return ((size_t)data & 15) == 0 && bytes % 16 == 0;
}

// A matrix in memory whose terms are contiguous; `stride` is the distance of two lines.
struct ByTerm {
    static constexpr bool BY_TERM = true;
    const float* data;
    int lines, terms;
    long long stride;
    bool vector = is_aligned(data, stride * 4);

    struct Line {
        const float* at;
        int terms;
        bool vector;

        __device__ __forceinline__ float operator()(int term) const { return term < terms ? at[term] : 0.0f; }

        // Whether all terms before one can be loaded as they are, eight at once.
        __device__ __forceinline__ bool whole(int end) const { return vector && end <= terms; }

        __device__ __forceinline__ void eight(float (&to)[8], int term) const {
            const float4* from = reinterpret_cast<const float4*>(at + term);
            reinterpret_cast<float4*>(to)[0] = from[0];
            reinterpret_cast<float4*>(to)[1] = from[1];
        }
    };

    __device__ __forceinline__ Line line(int number) const {
        return {data + number * stride, number < lines ? terms : 0, vector};
    }

    // By a warp: have L2 load 128 terms of eight lines.
    __device__ __forceinline__ void fetch(int first, int term) const {
        const int number = first + threadIdx.x % 32 / 4, k = term + threadIdx.x % 4 * 32;
        if (number < lines && k < terms) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(data + number * stride + k));
        }
    }
};

// A matrix in memory whose lines are contiguous; `stride` is the distance of two terms.
struct ByLine {
    static constexpr bool BY_TERM = false;
    const float* data;
    int lines, terms;
    long long stride;
    bool vector = is_aligned(data, stride * 4);

    struct Line {
        const float* at;
        int left, terms;
        long long stride;

        __device__ __forceinline__ float operator()(int term) const {
            return term < terms && left > 0 ? at[term * stride] : 0.0f;
        }

        __device__ __forceinline__ bool whole(int end) const { return left > 0 && end <= terms; }

        __device__ __forceinline__ void eight(float (&to)[8], int term) const {
            const float* from = at + term * stride;
            #pragma unroll
            for (int i = 0; i < 8; ++i, from += stride) {
                to[i] = *from;
            }
        }
    };

    __device__ __forceinline__ Line line(int number) const { return {data + number, lines - number, terms, stride}; }

    __device__ __forceinline__ void fetch(int first, int term) const {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int k = term + i * 32 + threadIdx.x % 32;
            if (first < lines && k < terms) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(data + k * stride + first));
            }
        }
    }
};

// Elements that functions give: at(line)(term).
template <class At>
struct Computed {
    static constexpr bool BY_TERM = false;
    At at;
    int lines, terms;

    struct Line {
        decltype(((At*)nullptr)->operator()(0)) element;
        int terms;

        __device__ __forceinline__ float operator()(int term) const { return term < terms ? (float)element(term) : 0.0f; }
    };

    __device__ __forceinline__ Line line(int number) const { return {at(number), number < lines ? terms : 0}; }
};

template <class At>
__device__ __forceinline__ Computed<At> computed(int lines, int terms, At at) {
    return {at, lines, terms};
}

// ---- Pairs of fp16 --------------------------------------------------------------------------------------------------------
// An fp32 number as the sum of two fp16, high and low, has 22 bits: low x high + high x low + high x high are three products at
// the fp16 rate with an error near that of fp32 (Ootomo and Yokota 2022). Lines are scaled by powers of two, since the range of
// fp16 is small.
//
// Packed, a matrix is made of blocks of LINES lines; in a block its steps follow each other, so that one bulk copy brings a step.
// There a line has 128 bytes, with the 128-byte swizzle that the tensor cores read: the high parts of 32 terms and then the low ones.

// What else tensor cores multiply: fp32 rounded to TF32, and the two kinds of fp8, as they are in memory.
struct TF32 {
    float value;

    __device__ __forceinline__ operator float() const { return value; }
};
struct E4M3 {
    unsigned char bits;
};
struct E5M2 {
    unsigned char bits;
};

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

template <class T>
constexpr int STEP = 128 / sizeof(T);
constexpr int LINES = 64, STRIP = 8, STEP_BYTES = LINES * 128;
constexpr unsigned INFINITE = 0x7f800000;

// The part of a matrix that a block of 256 threads packs: LINES lines and STRIP steps.
struct Part {
    int line, step;
};

// The power of two that numbers are multiplied by, so that the largest is between 2^14 and 2^15. It is 0 for infinities.
__device__ __forceinline__ int exponent_of(unsigned range) {
    return range >= INFINITE ? 0 : 14 - (max((int)(range >> 23), 27) - 127);
}

__device__ __forceinline__ float power_of_two(int exponent) {
    return __int_as_float((exponent + 127) << 23);
}

// The largest magnitudes of a line and of its first step, as bits. It is packed at once by the latter, with 8 bits to spare, or as one of
// numbers near 1 where that is 0, as in triangles; and again where the scale doesn't do.
struct Range {
    unsigned all, first;

    __device__ __forceinline__ int guess() const { return first > 0 ? exponent_of(first) - 8 : 6; }
    __device__ __forceinline__ bool fits() const {
        return all < INFINITE && guess() <= exponent_of(all) && (first > 0 || exponent_of(all) <= 22);
    }
    __device__ __forceinline__ bool needs_again() const { return !fits() && all > 0; }
    __device__ __forceinline__ int exponent() const { return needs_again() ? exponent_of(all) : guess(); }
};

// What blocks have found.
__device__ __forceinline__ Range found_of(Range* ranges, int line) {
    return {*(volatile unsigned*)&ranges[line].all, *(volatile unsigned*)&ranges[line].first};
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

// Where 8 terms of a line are in a step of a block, in bytes.
__device__ __forceinline__ int swizzled(int line, int chunk) {
    return line * 128 + ((chunk ^ (line & 7)) << 4);
}

// Eight terms of a line.
template <class Matrix, class Line>
__device__ __forceinline__ void load_eight(float (&to)[8], const Line& line, int term) {
    if constexpr (Matrix::BY_TERM) {
        if (line.vector && term + 8 <= line.terms) {
            const float4* from = reinterpret_cast<const float4*>(line.at + term);
            reinterpret_cast<float4*>(to)[0] = from[0];
            reinterpret_cast<float4*>(to)[1] = from[1];
            return;
        }
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        to[i] = line(term + i);
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

__device__ __forceinline__ void split_eight(const float (&v)[8], float scale, uint4& high, uint4& low) {
    split(v[0] * scale, v[1] * scale, high.x, low.x);
    split(v[2] * scale, v[3] * scale, high.y, low.y);
    split(v[4] * scale, v[5] * scale, high.z, low.z);
    split(v[6] * scale, v[7] * scale, high.w, low.w);
}

__device__ __forceinline__ unsigned rounded(float x) {
    unsigned found;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
    return found;
}

// Pack a part of a matrix as pairs, and find the `ranges` of its lines; or `again` those lines of it that need it. Or pack it rounded to
// TF32, without ranges.
template <class T, class Matrix>
__device__ __forceinline__ void pack_part(void* to, Range* ranges, const Matrix& from, const Part& part, bool again) {
    constexpr int TERMS = STEP<float>;
    constexpr bool PAIRS = SAME<T, float>;
    // Neighbouring threads have neighbours in memory.
    const int down = Matrix::BY_TERM ? threadIdx.x >> 2 : threadIdx.x & 63;
    const int chunk = Matrix::BY_TERM ? threadIdx.x & 3 : threadIdx.x >> 6;
    const int number = part.line + down, steps = (from.terms + TERMS - 1) / TERMS, end = min(part.step + STRIP, steps);
    const bool inside = number < from.lines;
    const auto line = from.line(number);
    __shared__ unsigned first[LINES];
    __shared__ uint4 packed[STEP_BYTES / 16];
    Range range = again && inside ? found_of(ranges, number) : Range{0, 0};
    const bool packs = !again || range.needs_again();
    if (!__syncthreads_or(packs)) {
        return;
    }
    if (threadIdx.x < LINES) {
        first[threadIdx.x] = 0;
    }
    float scale = power_of_two(range.exponent());
    unsigned char* at = reinterpret_cast<unsigned char*>(to) + ((long long)(part.line / LINES) * steps + part.step) * STEP_BYTES;
    const int one = swizzled(down, PAIRS ? chunk : 2 * chunk) / 16, other = swizzled(down, PAIRS ? chunk + 4 : 2 * chunk + 1) / 16;
    // The first round is of the first step, for its largest number.
    #pragma unroll 1
    for (int step = again || !PAIRS ? part.step : part.step - 1; step < end; ++step) {
        float v[8];
        load_eight<Matrix>(v, line, (step < part.step ? 0 : step) * TERMS + chunk * 8);
        __syncthreads();
        if (step < part.step) {
            atomicMax(first + down, largest(v));
            __syncthreads();
            range.first = first[down];
            scale = power_of_two(range.guess());
            continue;
        }
        uint4 high, low;
        if constexpr (PAIRS) {
            range.all = max(range.all, largest(v));
            split_eight(v, scale, high, low);
        } else {
            high = make_uint4(rounded(v[0]), rounded(v[1]), rounded(v[2]), rounded(v[3]));
            low = make_uint4(rounded(v[4]), rounded(v[5]), rounded(v[6]), rounded(v[7]));
        }
        if (Matrix::BY_TERM || again) {
            if (packs) {
                reinterpret_cast<uint4*>(at)[one] = high;
                reinterpret_cast<uint4*>(at)[other] = low;
            }
        } else {
            // So that neighbouring threads write neighbours.
            packed[one] = high;
            packed[other] = low;
            __syncthreads();
            reinterpret_cast<uint4*>(at)[threadIdx.x] = packed[threadIdx.x];
            reinterpret_cast<uint4*>(at)[threadIdx.x + 256] = packed[threadIdx.x + 256];
        }
        at += STEP_BYTES;
    }
    if (PAIRS && inside && !again) {
        // Most are no larger than what others found.
        if (range.all > *(volatile unsigned*)&ranges[number].all) {
            atomicMax(&ranges[number].all, range.all);
        }
        if (part.step == 0 && chunk == 0) {
            ranges[number].first = range.first;
        }
    }
}

// Pack a part of matrices, each given by where it is packed, its ranges, and what it is. Which block comes last to some lines packs those
// again that need it: `ranges` begin as zeros, behind those of all lines are as many as there are blocks of lines.
template <class T, class Matrix, class... Others>
__device__ __forceinline__ void pack(int number, void* to, Range* ranges, const Matrix& from, const Others&... others) {
    constexpr int TERMS = STRIP * STEP<float>;
    const int down = (from.lines + LINES - 1) / LINES, count = down * ((from.terms + TERMS - 1) / TERMS);
    if constexpr (sizeof...(others) > 0) {
        if (number >= count) {
            pack<T>(number - count, others...);
            return;
        }
    }
    Part part = {number % down * LINES, number / down * STRIP};
    pack_part<T>(to, ranges, from, part, false);
    if constexpr (SAME<T, float>) {
        __threadfence();
        __syncthreads();
        const bool is_last = threadIdx.x == 0
            && atomicAdd(&ranges[from.lines + part.line / LINES].all, 1) == count / down - 1;
        if (!__syncthreads_or(is_last)) {
            return;
        }
        __threadfence();
        const int line = part.line + threadIdx.x % LINES;
        if (!__syncthreads_or(line < from.lines && found_of(ranges, line).needs_again())) {
            return;
        }
        for (part.step = 0; part.step * STEP<float> < from.terms; part.step += STRIP) {
            pack_part<T>(to, ranges, from, part, true);
        }
    }
}

// ---- Packing beside products -----------------------------------------------------------------------------------------------
// Of a batch, matrices that are multiplied late are packed by warps that bring nothing, eight lines at once.

// By a warp: pack DEEP steps of eight lines, which have an exponent; returns the largest magnitude of the thread's.
template <int DEEP, class Line>
__device__ __forceinline__ unsigned pack_steps(unsigned char* to, const Line& line, int down, int step, int steps, int exponent) {
    const int chunk = threadIdx.x & 3, term = step * STEP<float> + chunk * 8;
    float v[DEEP][8];
    if (line.whole((step + DEEP) * STEP<float>)) {
        #pragma unroll
        for (int i = 0; i < DEEP; ++i) {
            line.eight(v[i], term + i * STEP<float>);
        }
    } else {
        #pragma unroll
        for (int i = 0; i < DEEP * 8; ++i) {
            v[i / 8][i % 8] = line(term + i / 8 * STEP<float> + i % 8);
        }
    }
    unsigned most = 0;
    #pragma unroll
    for (int i = 0; i < DEEP; ++i) {
        most = max(most, largest(v[i]));
        uint4 high, low;
        split_eight(v[i], power_of_two(exponent), high, low);
        if (step + i < steps) {
            unsigned char* at = to + (long long)(step + i) * STEP_BYTES;
            *reinterpret_cast<uint4*>(at + swizzled(down, chunk)) = high;
            *reinterpret_cast<uint4*>(at + swizzled(down, chunk + 4)) = low;
        }
    }
    return most;
}

__device__ __forceinline__ unsigned largest_of_line(unsigned most) {
    most = max(most, __shfl_xor_sync(0xffffffff, most, 1));
    return max(most, __shfl_xor_sync(0xffffffff, most, 2));
}

__device__ __forceinline__ int eighths_of(int lines) {
    return (lines + LINES - 1) / LINES * 8;
}

// By a warp: pack eight lines of matrices, each given by where it is packed, its ranges, and what it is; again where the first step's scale
// doesn't do.
template <class Matrix, class... Others>
__device__ __forceinline__ void pack_eight(int eighth, void* to, Range* ranges, const Matrix& from, const Others&... others) {
    if constexpr (sizeof...(others) > 0) {
        if (eighth >= eighths_of(from.lines)) {
            pack_eight(eighth - eighths_of(from.lines), others...);
            return;
        }
    }
    constexpr int DEEP = 4;
    const int first = eighth * 8, down = threadIdx.x % 32 >> 2, chunk = threadIdx.x & 3, steps = (from.terms + STEP<float> - 1) / STEP<float>;
    const auto line = from.line(first + down);
    unsigned char* block = reinterpret_cast<unsigned char*>(to) + (long long)(first / LINES) * steps * STEP_BYTES;
    from.fetch(first, 0);
    from.fetch(first, DEEP * STEP<float>);
    float v[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        v[i] = line(chunk * 8 + i);
    }
    Range range = {0, largest_of_line(largest(v))};
    int exponent = range.guess();
    #pragma unroll 1
    for (bool again = false;; again = true) {
        unsigned most = 0;
        #pragma unroll 1
        for (int step = 0; step < steps; step += DEEP) {
            from.fetch(first, (step + 2 * DEEP) * STEP<float>);
            most = max(most, pack_steps<DEEP>(block, line, first % LINES + down, step, steps, exponent));
        }
        range.all = largest_of_line(most);
        if (again || !__any_sync(0xffffffff, range.needs_again())) {
            break;
        }
        exponent = range.exponent();
    }
    if (chunk == 0 && first + down < from.lines) {
        ranges[first + down] = range;
    }
}

// Of a batch, how many matrices are packed before products.
__device__ __forceinline__ int packed_before(int most, int matrices) {
    return BLOCKS_WGMMA ? min(most, matrices) : matrices;
}

// By blocks of 256 threads: those, by `pack(matrix, part)`, of which each has a `count`.
template <class Pack>
__device__ __forceinline__ void pack_first(Pack pack, int most, int count, int matrices) {
    for (int number = blockIdx.x; number < packed_before(most, matrices) * count; number += gridDim.x) {
        pack(number / count, number % count);
    }
}

// Packing the others beside products. `done` begins as zeros; it has the number of eighths that were begun, and then of each matrix's that are
// done. Who waits for a matrix waits for what runs and waits for nothing.
template <class Pack>
struct Beside {
    static constexpr bool PACKS = true;
    Pack pack;
    int* done;
    int most;

    template <class Tiling>
    __device__ __forceinline__ void wait(int matrix, const Tiling& tiling) const {
        const int each = eighths_of(tiling.rows) + eighths_of(tiling.columns);
        for (int found = matrix < packed_before(most, tiling.batches) ? each : 0; found < each;) {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(done + 1 + matrix) : "memory");
        }
        // What others stored is read by bulk copies.
        asm volatile("fence.proxy.async;" ::: "memory");
    }

    template <class Tiling>
    __device__ __forceinline__ void run(const Tiling& tiling) const {
        const int each = eighths_of(tiling.rows) + eighths_of(tiling.columns), first = packed_before(most, tiling.batches);
        const bool is_first = threadIdx.x % 32 == 0;
        int taken = is_first ? atomicAdd(done, 1) : 0;
        #pragma unroll 1
        for (int number; number = first * each + __shfl_sync(0xffffffff, taken, 0), number < tiling.batches * each;) {
            // What is next comes while this is packed.
            taken = is_first ? atomicAdd(done, 1) : 0;
            pack(number / each, number % each);
            asm volatile("fence.proxy.async;" ::: "memory");
            __threadfence();
            __syncwarp();
            if (is_first) {
                asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(done + 1 + number / each) : "memory");
            }
        }
    }
};

template <class Pack>
__device__ __forceinline__ Beside<Pack> beside(Pack pack, int* done, int most) {
    return {pack, done, most};
}

struct Nothing {
    static constexpr bool PACKS = false;
};

// ---- Products on the tensor cores ------------------------------------------------------------------------------------------

// A tile: its first row and column, the matrix of a batch that it belongs to, and which of its steps are summed: those of a part of
// the terms.
struct Tile {
    int row, column, batch, part, first_step, last_step;
};

// A product as M x N tiles, in an order in which those that are computed together share operands: down GROUP rows of tiles, then to
// the next column.
template <int M, int N, int GROUP>
struct Tiling {
    int rows, columns, steps, batches, parts;

    __device__ __forceinline__ int count() const {
        return (rows + M - 1) / M * ((columns + N - 1) / N) * batches * parts;
    }

    __device__ __forceinline__ Tile tile(int number) const {
        const int down = (rows + M - 1) / M, across = (columns + N - 1) / N;
        const int place = number % (down * across), strip = place / (GROUP * across), matrix = number / (down * across);
        const int height = min(GROUP, down - strip * GROUP), within = place - strip * GROUP * across;
        const int part = matrix / batches, length = (steps + parts - 1) / parts;
        return {(strip * GROUP + within % height) * M, within / height * N, matrix % batches, part, min(part * length, steps),
            min((part + 1) * length, steps)};
    }
};

// The tile of a block, where each computes one.
template <int M, int N, int GROUP>
__device__ __forceinline__ Tile tile(int rows, int columns, int block) {
    return Tiling<M, N, GROUP>{rows, columns, 0, 1 << 30, 1}.tile(block);
}

// Who does what in a block of 2 M + PRODUCERS threads: M / 64 warp groups multiply, and another one brings the operands. A cluster
// of blocks has tiles below each other, whose columns' operands they bring together.
constexpr int PRODUCERS = 128;

// Lines that one warp converts, threads that do so in place of PRODUCERS, how many steps before these they have L2 load them, and bytes
// that say which units have new scales.
constexpr int UNIT = 16, CONVERTERS = 256, AHEAD = 4, MARKS = 32;

// A CUtensorMap with boxes of 64 x 64 numbers and the 128-byte swizzle; zeros where TMA can't read the tensor.
struct alignas(64) TensorMap {
    unsigned long long words[16];

    // The first word is an address; to read all of them takes some of the time that small products take.
    __device__ __forceinline__ bool valid() const { return words[0] != 0; }
};

// ---- Barriers in shared memory, and bulk copies

#if BLOCKS_WGMMA
__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    asm volatile("{.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
}

// At the same barrier of a block of the cluster. What was read there was read by the tensor cores, so no memory is ordered.
__device__ __forceinline__ void arrive_at(unsigned barrier, int block) {
    asm volatile("{.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block) : "memory");
}

// Where another block of the cluster has what is at an address here, and four numbers there and here.
__device__ __forceinline__ unsigned address_at(unsigned own, int block) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(block));
    return there;
}

__device__ __forceinline__ void store_four(unsigned there, float x, float y, float z, float w) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

__device__ __forceinline__ float4 load_four(unsigned at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Bring bytes to the same place in all blocks of a mask; 0 is this one.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier, int mask) {
    if (mask == 0) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                     ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"((unsigned short)mask) : "memory");
    }
}

// The same of a box of a tensor of three axes.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap* map, int x, int y, int z, unsigned barrier, int mask) {
    if (mask == 0) {
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                     ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                     ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((unsigned short)mask) : "memory");
    }
}
#endif

template <class T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Together {
    T of[WIDTH];
};

template <int BYTES>
struct UnsignedOf {
    using Type = unsigned short;
};
template <>
struct UnsignedOf<1> {
    using Type = unsigned char;
};
template <>
struct UnsignedOf<4> {
    using Type = unsigned;
};
template <int BYTES>
using Unsigned = typename UnsignedOf<BYTES>::Type;

// A packed matrix of fp32, as pairs or rounded to TF32.
template <class T>
struct PackedAs {
    using Element = T;
    static constexpr bool TURNED = false, CONVERTED = false;
    const void* data;
    const Range* ranges;
    int lines, steps;

    // Where a step of LINES lines begins.
    __device__ __forceinline__ const unsigned char* at(int line, int step) const {
        return reinterpret_cast<const unsigned char*>(data) + ((long long)(line / LINES) * steps + step) * STEP_BYTES;
    }

    // A number as it was packed.
    __device__ __forceinline__ float element(int line, int term) const {
        const unsigned char* from = at(line, term / STEP<float>) + term % 8 * 2;
        const int chunk = term % STEP<float> / 8;
        return __half2float(*reinterpret_cast<const __half*>(from + swizzled(line % LINES, chunk)))
            + __half2float(*reinterpret_cast<const __half*>(from + swizzled(line % LINES, chunk + 4)));
    }

    __device__ __forceinline__ float factor(int line) const { return power_of_two(-ranges[line].exponent()); }

    // What undoes the scaling of a line; no number where it has infinities.
    __device__ __forceinline__ static float unscale(Range range) {
        return range.all >= INFINITE ? __int_as_float(0x7fffffff) : power_of_two(-range.exponent());
    }

    __device__ __forceinline__ float unscale(int line) const { return unscale(line < lines ? ranges[line] : Range{0, 0}); }

    // For later: others may have found it.
    __device__ __forceinline__ Range range(int line) const {
        Range found = {0, 0};
        if (line < lines) {
            asm volatile("ld.global.cg.v2.b32 {%0, %1}, [%2];" : "=r"(found.all), "=r"(found.first) : "l"(ranges + line) : "memory");
        }
        return found;
    }

#if BLOCKS_WGMMA
    __device__ __forceinline__ bool is_copied() const { return true; }

    // What a copy of COUNT lines brings: whole blocks, without those that are beyond the edge.
    template <int COUNT>
    __device__ __forceinline__ int bytes(int line) const {
        return max(0, min(COUNT, lines - line) + LINES - 1) / LINES * STEP_BYTES;
    }

    // Blocks of a cluster each bring their share, for all that a mask tells of.
    template <int COUNT>
    __device__ __forceinline__ void copy(unsigned to, int line, int step, unsigned barrier, int share, int mask) const {
        for (int i = share * LINES; i < min(COUNT, lines - line); i += mask == 0 ? LINES : __popc(mask) * LINES) {
            bulk_copy(to + i * 128, at(line + i, step), STEP_BYTES, barrier, mask);
        }
    }
#endif

    // By the producers: bring a step of COUNT lines.
    template <int COUNT>
    __device__ __forceinline__ void load(unsigned to, int line, int step) const {
        for (int i = threadIdx.x % PRODUCERS; i < COUNT * 8; i += PRODUCERS) {
            const bool inside = line + i / 8 < lines;
            const unsigned char* from = at(line + i / 8, step) + i / 8 % LINES * 128 + i % 8 * 16;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * 16), "l"(inside ? (const void*)from : data),
                "r"(inside ? 16 : 0) : "memory");
        }
    }
};

using Packed = PackedAs<float>;

// Of a power of two, or no number of none.
__device__ __forceinline__ float inverse(float power) {
    return fmaf(power, 0.0f, __int_as_float(0x7f000000 - __float_as_int(power)));
}

// What a lane has of a step of UNIT lines: four terms of each of four lines, or four terms of each four lines.
struct Share {
    float4 of[4];
};

// The scales of these lines.
struct Scales {
    float of[4];
};

// A matrix of fp32 where it is in memory, with terms or else lines that are neighbours. Those who bring operands write it into shared
// memory as pairs: a warp has UNIT lines, which it scales by their largest number so far, with 8 bits to spare. Where those are too
// few it marks the step, from which on lines have other scales.
template <bool BY_TERM>
struct Unpacked {
    using Element = float;
    static constexpr bool TURNED = !BY_TERM, CONVERTED = true;
    const float* data;
    int lines, terms;
    long long stride;
    bool vector = is_aligned(data, stride * 4);

    __device__ __forceinline__ float element(int line, int term) const {
        return line < lines && term < terms ? data[BY_TERM ? line * stride + term : term * stride + line] : 0.0f;
    }

    __device__ __forceinline__ float factor(int) const { return 1.0f; }

    // Nothing is copied.
    __device__ __forceinline__ bool is_copied() const { return false; }

    template <int COUNT>
    __device__ __forceinline__ int bytes(int) const { return 0; }

    template <int COUNT>
    __device__ __forceinline__ void copy(unsigned, int, int, unsigned, int, int) const {}

    // By the producers: a step of COUNT lines as pairs, which a table has the scales of.
    template <int COUNT>
    __device__ __forceinline__ void load(unsigned to, int line, int step, const float* unscale) const {
        for (int i = threadIdx.x % PRODUCERS; i < COUNT * 4; i += PRODUCERS) {
            const int down = BY_TERM ? i / 4 : i / (STEP<float> * 8) * LINES + i % 8 * 8, deep = BY_TERM ? i % 4 * 8 : i / 8 % STEP<float>;
            float v[8];
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int own = down + (BY_TERM ? 0 : j);
                v[j] = element(line + own, step * STEP<float> + deep + (BY_TERM ? j : 0)) * inverse(unscale[own]);
            }
            uint4 high, low;
            split_eight(v, 1.0f, high, low);
            const unsigned at = BY_TERM ? to + swizzled(down, i % 4) : to + i / (STEP<float> * 8) * (STEP_BYTES / 2) + swizzled(deep, i % 8);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(high.x), "r"(high.y), "r"(high.z), "r"(high.w) : "memory");
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(BY_TERM ? at ^ 64 : at + COUNT * 64), "r"(low.x), "r"(low.y),
                "r"(low.z), "r"(low.w) : "memory");
        }
    }

    // What undoes the scaling of a line by the largest of its numbers, by a warp.
    __device__ __forceinline__ float unscale(int line, const Tile& tile) const {
        unsigned most = 0;
        for (int term = tile.first_step * STEP<float> + threadIdx.x % 32; term < tile.last_step * STEP<float>; term += 32) {
            most = max(most, __float_as_uint(element(line, term)) & 0x7fffffff);
        }
        most = __reduce_max_sync(0xffffffff, most);
        return most >= INFINITE ? __int_as_float(0x7fffffff) : power_of_two(-exponent_of(most));
    }

#if BLOCKS_WGMMA
    // Half a warp stores to different banks.
    __device__ __forceinline__ static int outer(int i) {
        const int lane = threadIdx.x % 32;
        return BY_TERM ? (i >> 1) * 8 + (i & 1) * 2 + (lane >> 4) + (lane >> 3 & 1) * 4 : i * 8 + (lane >> 2 & 3) * 2 + (lane >> 4);
    }

    __device__ __forceinline__ static int inner() { return BY_TERM ? threadIdx.x % 8 * 4 : threadIdx.x % 4 * 4; }

    __device__ __forceinline__ static bool is_first_of_line() { return BY_TERM ? threadIdx.x % 8 == 0 : threadIdx.x % 32 < 4; }

    __device__ __forceinline__ static int line_of(int i) { return BY_TERM ? outer(i) : inner() + i; }

    __device__ __forceinline__ void fetch(Share& share, int line, int step) const {
        const int term = step * STEP<float>;
        // Computed anew each time, since registers are few.
        long long stride = this->stride;
        asm volatile("" : "+l"(stride));
        if (vector && line + UNIT <= lines && term + STEP<float> <= terms) {
            const float* from = data + (BY_TERM ? (line + outer(0)) * stride + term + inner() : (term + outer(0)) * stride + line + inner());
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* at = from + (BY_TERM ? (i >> 1) * 8 + (i & 1) * 2 : i * 8) * stride;
                asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];"
                    : "=f"(share.of[i].x), "=f"(share.of[i].y), "=f"(share.of[i].z), "=f"(share.of[i].w) : "l"(at));
            }
            const int later = term + AHEAD * STEP<float>, lane = threadIdx.x % 32;
            if (later + STEP<float> <= terms && (!BY_TERM || lane < UNIT)) {
                asm volatile("prefetch.global.L2 [%0];"
                             ::"l"(data + (BY_TERM ? (line + lane) * stride + later : (later + lane) * stride + line)));
            }
            return;
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float* to = reinterpret_cast<float*>(&share.of[i]);
            int first = BY_TERM ? line + outer(i) : line + inner(), k = BY_TERM ? term + inner() : term + outer(i);
            asm volatile("" : "+r"(first), "+r"(k));
            const float* at = data + (BY_TERM ? first * stride + k : k * stride + first);
            const int left = BY_TERM ? (first < lines ? terms - k : 0) : (k < terms ? lines - first : 0);
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                to[j] = j < left ? at[j] : 0.0f;
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ static void write(const Share& share, const Scales& scales, unsigned to, int first) {
        const int chunk = BY_TERM ? threadIdx.x % 8 >> 1 : (first % LINES + inner()) >> 3;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* v = reinterpret_cast<const float*>(&share.of[i]);
            unsigned high[2], low[2];
            #pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const float x = v[j] * scales.of[BY_TERM ? i : j], y = v[j + 1] * scales.of[BY_TERM ? i : j + 1];
                const __half2 h = __floats2half2_rn(x, y);
                const float2 back = __half22float2(h);
                const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
                high[j / 2] = *reinterpret_cast<const unsigned*>(&h);
                low[j / 2] = *reinterpret_cast<const unsigned*>(&l);
            }
            const unsigned at = to + (threadIdx.x & 1) * 8
                + (BY_TERM ? swizzled(first + outer(i), chunk) : first / LINES * (STEP_BYTES / 2) + swizzled(outer(i), chunk));
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(high[0]), "r"(high[1]) : "memory");
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(BY_TERM ? at ^ 64 : at + COUNT * 64), "r"(low[0]), "r"(low[1]) : "memory");
        }
    }

    // Write a unit of COUNT lines' step, and whether it has new scales, by which lines `change`.
    template <int COUNT>
    __device__ __forceinline__ static void keep(const Share& share, Scales& scales, unsigned to, int first, unsigned marks, unsigned change) {
        float most[4] = {};
        bool large = false;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* v = reinterpret_cast<const float*>(&share.of[i]);
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                most[BY_TERM ? i : j] = fmaxf(most[BY_TERM ? i : j], fabsf(v[j]));
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            large |= most[i] * scales.of[i] >= 32768.0f;
        }
        write<COUNT>(share, scales, to, first);
        const bool changes = __any_sync(0xffffffff, large);
        if (threadIdx.x % 32 == 0) {
            asm volatile("st.shared.u8 [%0], %1;" ::"r"(marks + first / UNIT), "r"((int)changes) : "memory");
        }
        if (!changes) {
            return;
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int apart = BY_TERM ? 1 : 4; apart < (BY_TERM ? 8 : 32); apart *= 2) {
                most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffff, most[i], apart));
            }
            const unsigned bits = __float_as_uint(most[i]);
            const float now = !(most[i] * scales.of[i] >= 32768.0f) ? scales.of[i]
                : bits >= INFINITE ? __int_as_float(0x7fffffff) : power_of_two(exponent_of(bits) - 8);
            if (is_first_of_line()) {
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(change + (first + line_of(i)) * 4), "f"(now * inverse(scales.of[i])) : "memory");
            }
            scales.of[i] = now;
        }
        write<COUNT>(share, scales, to, first);
    }
#endif
};

// The scale of a line of which all numbers so far are zeros: any that isn't tiny changes it.
constexpr unsigned UNSCALED = (106 + 127) << 23;

// A matrix where it is in memory: as the `batch`th of a tensor that a map is of, or loaded by threads. Its terms are neighbours, or
// else its lines are, of 16-bit numbers; `stride` is the distance of two lines, or else of two terms, and `start` the map's place of the
// first term. A step in shared memory is made of boxes of BOX lines and a step's terms, in which neighbours in memory are neighbours, 128
// swizzled bytes of them.
template <class T, bool BY_TERM, int BOX = LINES>
struct Stored {
    static_assert(BY_TERM ? BOX % 8 == 0 : BOX == LINES, "Boxes have 64 neighbours");
    using Element = T;
    static constexpr bool TURNED = !BY_TERM, CONVERTED = false;
    const TensorMap* map;
    const T* data;
    int lines, terms, batch;
    long long stride;
    int start = 0;

#if BLOCKS_WGMMA
    __device__ __forceinline__ bool is_copied() const { return map != nullptr && map->valid(); }

    template <int COUNT>
    __device__ __forceinline__ int bytes(int) const { return COUNT * 128; }

    template <int COUNT>
    __device__ __forceinline__ void copy(unsigned to, int line, int step, unsigned barrier, int share, int mask) const {
        static_assert(COUNT % BOX == 0, "Whole boxes");
        for (int i = share * BOX; i < COUNT; i += mask == 0 ? BOX : __popc(mask) * BOX) {
            const int first = line + i, term = step * STEP<T> + start;
            copy_box(to + i * 128, map, BY_TERM ? term : first, BY_TERM ? first : term, batch, barrier, mask);
        }
    }
#endif

    __device__ __forceinline__ T element(int line, int term) const {
        return line < lines && term < terms ? data[BY_TERM ? line * stride + term : term * stride + line] : T{};
    }

    // COUNT terms of a line, or else so many lines' one term: up to 16 bytes, at once if they are neighbours and WHOLE, inside and aligned.
    template <int COUNT, bool TERMS, bool WHOLE>
    __device__ __forceinline__ Together<T, COUNT> some(int line, int term) const {
        if constexpr (WHOLE && TERMS == BY_TERM) {
            return *reinterpret_cast<const Together<T, COUNT>*>(data + (BY_TERM ? line * stride + term : term * stride + line));
        }
        Together<T, COUNT> found;
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            found.of[i] = element(line + (TERMS ? 0 : i), term + (TERMS ? i : 0));
        }
        return found;
    }

    template <int COUNT>
    __device__ __forceinline__ void load(unsigned to, int line, int step) const {
        constexpr int CHUNK = 16 / sizeof(T);
        const bool vector = is_aligned(data, stride * sizeof(T));
        #pragma unroll 2
        for (int i = threadIdx.x % PRODUCERS; i < COUNT * 8; i += PRODUCERS) {
            const int first = line + i / (LINES * 8) * LINES, term = step * STEP<T>, down = i / 8 % LINES, chunk = i % 8;
            const int outer = (BY_TERM ? first : term) + down, inner = (BY_TERM ? term : first) + chunk * CHUNK;
            const int left = outer < (BY_TERM ? lines : terms) ? (BY_TERM ? terms : lines) - inner : 0;
            const T* at = data + outer * stride + inner;
            uint4 found = make_uint4(0, 0, 0, 0);
            if (vector && left >= CHUNK) {
                found = *reinterpret_cast<const uint4*>(at);
            } else if (left > 0) {
                using Word = Unsigned<sizeof(T)>;
                #pragma unroll
                for (int j = 0; j < CHUNK; ++j) {
                    reinterpret_cast<Word*>(&found)[j] = j < left ? reinterpret_cast<const Word*>(at)[j] : 0;
                }
            }
            if constexpr (SAME<T, TF32>) {
                found = make_uint4(rounded(__uint_as_float(found.x)), rounded(__uint_as_float(found.y)), rounded(__uint_as_float(found.z)),
                    rounded(__uint_as_float(found.w)));
            }
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i / (LINES * 8) * STEP_BYTES + swizzled(down, chunk)),
                "r"(found.x), "r"(found.y), "r"(found.z), "r"(found.w) : "memory");
        }
    }
};

#if BLOCKS_WGMMA
#define BLOCKS_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BLOCKS_LIST_16 BLOCKS_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define BLOCKS_LIST_24 BLOCKS_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define BLOCKS_LIST_32 BLOCKS_LIST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define BLOCKS_LIST_40 BLOCKS_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define BLOCKS_LIST_48 BLOCKS_LIST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define BLOCKS_LIST_56 BLOCKS_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define BLOCKS_LIST_64 BLOCKS_LIST_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define BLOCKS_LIST_72 BLOCKS_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define BLOCKS_LIST_80 BLOCKS_LIST_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define BLOCKS_LIST_88 BLOCKS_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define BLOCKS_LIST_96 BLOCKS_LIST_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define BLOCKS_LIST_104 BLOCKS_LIST_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define BLOCKS_LIST_112 BLOCKS_LIST_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define BLOCKS_LIST_120 BLOCKS_LIST_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define BLOCKS_LIST_128 BLOCKS_LIST_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define BLOCKS_F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
    "+f"(d[i + 6]), "+f"(d[i + 7])
#define BLOCKS_SUMS_8 BLOCKS_F8(0)
#define BLOCKS_SUMS_16 BLOCKS_SUMS_8, BLOCKS_F8(8)
#define BLOCKS_SUMS_24 BLOCKS_SUMS_16, BLOCKS_F8(16)
#define BLOCKS_SUMS_32 BLOCKS_SUMS_24, BLOCKS_F8(24)
#define BLOCKS_SUMS_40 BLOCKS_SUMS_32, BLOCKS_F8(32)
#define BLOCKS_SUMS_48 BLOCKS_SUMS_40, BLOCKS_F8(40)
#define BLOCKS_SUMS_56 BLOCKS_SUMS_48, BLOCKS_F8(48)
#define BLOCKS_SUMS_64 BLOCKS_SUMS_56, BLOCKS_F8(56)
#define BLOCKS_SUMS_72 BLOCKS_SUMS_64, BLOCKS_F8(64)
#define BLOCKS_SUMS_80 BLOCKS_SUMS_72, BLOCKS_F8(72)
#define BLOCKS_SUMS_88 BLOCKS_SUMS_80, BLOCKS_F8(80)
#define BLOCKS_SUMS_96 BLOCKS_SUMS_88, BLOCKS_F8(88)
#define BLOCKS_SUMS_104 BLOCKS_SUMS_96, BLOCKS_F8(96)
#define BLOCKS_SUMS_112 BLOCKS_SUMS_104, BLOCKS_F8(104)
#define BLOCKS_SUMS_120 BLOCKS_SUMS_112, BLOCKS_F8(112)
#define BLOCKS_SUMS_128 BLOCKS_SUMS_120, BLOCKS_F8(120)

// One product of a warp group: 64 x N sums of 32 bytes' terms in shared memory, which descriptors tell of. It begins anew unless
// `adds`. Neighbours of a TURNED operand, of fp16 or bf16, are along its lines.
#define BLOCKS_ISSUE(TYPES, COUNT, N, A, B, ADDS, TURNING) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" N TYPES " {" \
                 BLOCKS_LIST_##COUNT "}, " A ", " B ", p, 1, 1" TURNING ";}" \
                 : BLOCKS_SUMS_##COUNT : "l"(a), "l"(b), "r"(adds), "n"(TURNED_A), "n"(TURNED_B))
#define BLOCKS_PRODUCT(COUNT, N, A, B, ADDS, TURNED_OF_A, TURNED_OF_B) \
template <class T = __half, class U = T, int TURNED_A = 0, int TURNED_B = 0> \
__device__ __forceinline__ void wgmma(float (&d)[COUNT], unsigned long long a, unsigned long long b, int adds) { \
    if constexpr (SAME<T, __nv_bfloat16>) { \
        BLOCKS_ISSUE("k16.f32.bf16.bf16", COUNT, N, A, B, ADDS, ", " TURNED_OF_A ", " TURNED_OF_B); \
    } else if constexpr (sizeof(T) == 2) { \
        BLOCKS_ISSUE("k16.f32.f16.f16", COUNT, N, A, B, ADDS, ", " TURNED_OF_A ", " TURNED_OF_B); \
    } else if constexpr (sizeof(T) == 4) { \
        BLOCKS_ISSUE("k8.f32.tf32.tf32", COUNT, N, A, B, ADDS, ""); \
    } else if constexpr (SAME<T, E4M3> && SAME<U, E4M3>) { \
        BLOCKS_ISSUE("k32.f32.e4m3.e4m3", COUNT, N, A, B, ADDS, ""); \
    } else if constexpr (SAME<T, E4M3>) { \
        BLOCKS_ISSUE("k32.f32.e4m3.e5m2", COUNT, N, A, B, ADDS, ""); \
    } else if constexpr (SAME<U, E4M3>) { \
        BLOCKS_ISSUE("k32.f32.e5m2.e4m3", COUNT, N, A, B, ADDS, ""); \
    } else { \
        BLOCKS_ISSUE("k32.f32.e5m2.e5m2", COUNT, N, A, B, ADDS, ""); \
    } \
}
BLOCKS_PRODUCT(8, "16", "%8", "%9", "%10", "%11", "%12")
BLOCKS_PRODUCT(16, "32", "%16", "%17", "%18", "%19", "%20")
BLOCKS_PRODUCT(24, "48", "%24", "%25", "%26", "%27", "%28")
BLOCKS_PRODUCT(32, "64", "%32", "%33", "%34", "%35", "%36")
BLOCKS_PRODUCT(40, "80", "%40", "%41", "%42", "%43", "%44")
BLOCKS_PRODUCT(48, "96", "%48", "%49", "%50", "%51", "%52")
BLOCKS_PRODUCT(56, "112", "%56", "%57", "%58", "%59", "%60")
BLOCKS_PRODUCT(64, "128", "%64", "%65", "%66", "%67", "%68")
BLOCKS_PRODUCT(72, "144", "%72", "%73", "%74", "%75", "%76")
BLOCKS_PRODUCT(80, "160", "%80", "%81", "%82", "%83", "%84")
BLOCKS_PRODUCT(88, "176", "%88", "%89", "%90", "%91", "%92")
BLOCKS_PRODUCT(96, "192", "%96", "%97", "%98", "%99", "%100")
BLOCKS_PRODUCT(104, "208", "%104", "%105", "%106", "%107", "%108")
BLOCKS_PRODUCT(112, "224", "%112", "%113", "%114", "%115", "%116")
BLOCKS_PRODUCT(120, "240", "%120", "%121", "%122", "%123", "%124")
BLOCKS_PRODUCT(128, "256", "%128", "%129", "%130", "%131", "%132")

// Of boxes of 128 swizzled bytes in shared memory; where neighbours are along lines, they are `apart` bytes from each other.
__device__ __forceinline__ unsigned long long descriptor(unsigned start, unsigned apart = 16) {
    // In a cluster, addresses have the block's number in their upper bits.
    return (unsigned long long)((start & 0x3ffff) >> 4) | (unsigned long long)(apart >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

// Issue the products of a step; `wait` waits until at most so many steps' products are unfinished, and READS what is finished.
template <int M, int N, class T = float, class U = T, bool TURNED_A = false, bool TURNED_B = false>
__device__ __forceinline__ void products(float (&sum)[N / 2], unsigned stage, bool adds) {
    constexpr int OWN = SAME<T, float> && TURNED_A ? STEP_BYTES / 2 : STEP_BYTES;
    const unsigned long long a = descriptor(stage + (M > 64 ? threadIdx.x >> 7 : 0) * OWN);
    const unsigned long long b = descriptor(stage + M * 128, TURNED_B ? STEP<T> * 128 : 16);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if constexpr (SAME<T, float>) {
        #pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned long long high = b + k * (TURNED_B ? 64 : 1), low = high + (TURNED_B ? N * 4 : 4);
            const unsigned long long high_a = a + k * (TURNED_A ? 64 : 1), low_a = high_a + (TURNED_A ? M * 4 : 4);
            wgmma<__half, __half, TURNED_A, TURNED_B>(sum, low_a, high, k > 0 || adds);
            wgmma<__half, __half, TURNED_A, TURNED_B>(sum, high_a, low, 1);
            wgmma<__half, __half, TURNED_A, TURNED_B>(sum, high_a, high, 1);
        }
    } else {
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma<T, U, TURNED_A, TURNED_B>(sum, a + k * (TURNED_A ? 128 : 2), b + k * (TURNED_B ? 128 : 2), k > 0 || adds);
        }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int UNFINISHED, bool READS = UNFINISHED == 0, int COUNT>
__device__ __forceinline__ void wait(float (&sum)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNFINISHED) : "memory");
    if (READS) {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            asm volatile("" : "+f"(sum[i])::"memory");
        }
    }
}

template <int COUNT>
__device__ __forceinline__ void add_sums(float (&to)[COUNT], const float (&from)[COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        to[i] += from[i];
    }
}

__device__ __forceinline__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Of 64 K registers, two groups that multiply leave producers 56 a thread and have 224, or 72 and 216 if those pack; three have 152. Those
// that convert have 96 a thread and two groups 160, or 136 and one 224.
template <int GROUPS, bool CONVERTS = false, bool PACKS = false>
__device__ __forceinline__ void fewer_registers() {
    if constexpr (GROUPS > 1 || CONVERTS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONVERTS ? (GROUPS == 1 ? 136 : 96) : PACKS ? 72 : 56));
    }
}

template <int GROUPS, bool CONVERTS = false, bool PACKS = false>
__device__ __forceinline__ void more_registers() {
    if constexpr (GROUPS > 1 || CONVERTS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONVERTS ? (GROUPS == 1 ? 224 : 160) : GROUPS > 2 ? 152 : PACKS ? 216 : 224));
    }
}
#else
template <bool TURNED = false>
__device__ __forceinline__ void load_fragments(unsigned (&to)[4], unsigned from) {
    if constexpr (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
    }
}

#define BLOCKS_MMA(SHAPE, TYPE) \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
// The first or last two of four numbers of fp8 as fp16.
template <class T>
__device__ __forceinline__ unsigned halves(unsigned four, int last) {
    const unsigned two = four >> last * 16, bytes = (two & 0xff) << 8 | (two & 0xff00) << 16;
    if constexpr (SAME<T, E5M2>) {
        return bytes;
    } else {
        // As fp16 its exponent is 8 too small; there is no infinity.
        const unsigned moved = (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1;
        const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&moved), __float2half2_rn(256.0f));
        const unsigned found = *reinterpret_cast<const unsigned*>(&scaled);
        return found | ((two & 0x7f) == 0x7f ? 0x7fff : 0) | ((two & 0x7f00) == 0x7f00 ? 0x7fff0000 : 0);
    }
}

// 32 bytes' terms of 16 lines and of 8 others.
template <class T = __half, class U = T>
__device__ __forceinline__ void mma(float* d, const unsigned* a, unsigned b0, unsigned b1) {
    if constexpr (SAME<T, __nv_bfloat16>) {
        BLOCKS_MMA("m16n8k16", "bf16");
    } else if constexpr (sizeof(T) == 2) {
        BLOCKS_MMA("m16n8k16", "f16");
    } else if constexpr (sizeof(T) == 4) {
        BLOCKS_MMA("m16n8k8", "tf32");
    } else {
        #pragma unroll
        for (int last = 0; last < 2; ++last) {
            const unsigned from[4] = {halves<T>(a[0], last), halves<T>(a[1], last), halves<T>(a[2], last), halves<T>(a[3], last)};
            mma(d, from, halves<U>(b0, last), halves<U>(b1, last));
        }
    }
}

// Where a lane finds its 16 bytes of 16 lines and 16 terms: a chunk of 8 terms, of the first or second 8 lines.
__device__ __forceinline__ unsigned fragment(unsigned lines, int line, int chunk) {
    line += threadIdx.x & 7;
    return lines + line * 128 + ((chunk ^ (line & 7)) << 4);
}

// The same of boxes in which neighbours are along terms, or else lines: 8 lines, and a chunk of terms or 8 of them.
template <bool TURNED>
__device__ __forceinline__ unsigned fragment_of(unsigned boxes, int line, int chunk) {
    return TURNED ? fragment(boxes + line / LINES * STEP_BYTES, chunk * 8, line % LINES / 8) : fragment(boxes, line, chunk);
}

template <int M, int N, class T = float, class U = T, bool TURNED_A = false, bool TURNED_B = false>
__device__ __forceinline__ void products(float (&sum)[N / 2], unsigned stage, bool adds) {
    const int line = (threadIdx.x >> 5) * 16, first = threadIdx.x >> 3 & 1, second = threadIdx.x >> 4 & 1;
    if (!adds) {
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            sum[i] = 0.0f;
        }
    }
    if constexpr (!SAME<T, float>) {
        #pragma unroll
        for (int k = 0; k < 8; k += 2) {
            unsigned from_a[4], from_b[4];
            load_fragments<TURNED_A>(from_a, fragment_of<TURNED_A>(stage, line + first * 8, k + second));
            #pragma unroll
            for (int n = 0; n < N; n += 16) {
                load_fragments<TURNED_B>(from_b, fragment_of<TURNED_B>(stage + M * 128, n + second * 8, k + first));
                mma<T, U>(sum + n / 2, from_a, from_b[0], from_b[1]);
                mma<T, U>(sum + n / 2 + 4, from_a, from_b[2], from_b[3]);
            }
        }
        return;
    }
    #pragma unroll
    for (int k = 0; k < 4; k += 2) {
        unsigned high_a[4], low_a[4], high_b[4], low_b[4];
        const unsigned from_a = TURNED_A ? fragment(stage + line / LINES * (STEP_BYTES / 2), (k + second) * 8, line % LINES / 8 + first)
                                         : fragment(stage, line + first * 8, k + second);
        load_fragments<TURNED_A>(high_a, from_a);
        load_fragments<TURNED_A>(low_a, TURNED_A ? from_a + M * 64 : from_a ^ 64);
        #pragma unroll
        for (int n = 0; n < N; n += 16) {
            const unsigned lines = stage + M * 128;
            const unsigned from_b = TURNED_B ? fragment(lines + n / 64 * 4096, (k + first) * 8, n % 64 / 8 + second)
                                             : fragment(lines, n + second * 8, k + first);
            load_fragments<TURNED_B>(high_b, from_b);
            load_fragments<TURNED_B>(low_b, TURNED_B ? from_b + N * 64 : from_b ^ 64);
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

// Where threads bring operands: a step of one, which may have to be converted by the scales of its lines, found first.
template <int COUNT, class Operand>
__device__ __forceinline__ void load_step(const Operand& operand, unsigned to, int line, int step, const float* unscale) {
    if constexpr (Operand::CONVERTED) {
        operand.template load<COUNT>(to, line, step, unscale);
    } else {
        operand.template load<COUNT>(to, line, step);
    }
}
#endif

// By the last THREADS: what undoes the scaling of COUNT lines, unless those who convert them know it.
template <int COUNT, int THREADS, class Operand>
__device__ __forceinline__ void find_scales(const Operand& operand, float* unscale, int line, const Tile& tile) {
    const int thread = threadIdx.x - (blockDim.x - THREADS);
    if constexpr (!Operand::CONVERTED) {
        #pragma unroll 1
        for (int i = thread; i < COUNT; i += THREADS) {
            unscale[i] = operand.unscale(line + i);
        }
    } else if constexpr (!BLOCKS_WGMMA) {
        for (int i = thread / 32; i < COUNT; i += THREADS / 32) {
            unscale[i] = operand.unscale(line + i, tile);
        }
    }
}

#if BLOCKS_WGMMA
// use_a(i, line) or use_b(i, line) for the units of a warp, of which there may be one less.
template <int WARPS, int OF_A, int UNITS, int EACH, class UseA, class UseB>
__device__ __forceinline__ void each_unit(int warp, UseA use_a, UseB use_b) {
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int unit = i * WARPS + warp;
        if ((i + 1) * WARPS <= OF_A || (i * WARPS < OF_A && unit < OF_A)) {
            use_a(i, unit * UNIT);
        } else if ((i + 1) * WARPS <= UNITS || unit < UNITS) {
            use_b(i, (unit - OF_A) * UNIT);
        }
    }
}

template <class Operand>
__device__ __forceinline__ void fetch_share(const Operand& operand, Share& share, int line, int step) {
    if constexpr (Operand::CONVERTED) {
        operand.fetch(share, line, step);
    }
}

template <int COUNT, class Operand>
__device__ __forceinline__ void keep_share(const Operand&, const Share& share, Scales& scales, unsigned to, int line, unsigned marks,
        unsigned change) {
    if constexpr (Operand::CONVERTED) {
        Operand::template keep<COUNT>(share, scales, to, line, marks, change);
    }
}

template <class Operand>
__device__ __forceinline__ void tell_scales(const Operand&, const Scales& scales, float* unscale) {
    if constexpr (Operand::CONVERTED) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (Operand::is_first_of_line()) {
                unscale[Operand::line_of(i)] = inverse(scales.of[i]);
            }
        }
    }
}

// Whether any lines have new scales from a step on, and the factor by which a line's changes.
__device__ __forceinline__ bool marked(unsigned marks) {
    unsigned v[8];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(marks) : "memory");
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]) : "r"(marks + 16) : "memory");
    return (v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7]) != 0;
}

__device__ __forceinline__ float changed(unsigned marks, unsigned changes, int line) {
    unsigned mark;
    float change;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(mark) : "r"(marks + line / UNIT) : "memory");
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(change) : "r"(changes + line * 4) : "memory");
    return mark ? change : 1.0f;
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
__device__ __forceinline__ float exact_product(const A& a, const B& b, int row, int column, const Tile& tile) {
    const float left = a.factor(row), right = b.factor(column);
    float sum = 0.0f;
    for (int term = tile.first_step * STEP<float>; term < tile.last_step * STEP<float>; ++term) {
        sum = fmaf(a.element(row, term) * left, b.element(column, term) * right, sum);
    }
    return sum;
}

// Undo the scaling of sums, by what `unscale` says of the tile's rows and columns. Where that gives no number, infinities are among
// the factors, or beyond what scaled sums can hold.
template <int M, int N, class A, class B>
__device__ __forceinline__ void finish(float (&sum)[N / 2], const float* unscale, const A& a, const B& b, const Tile& tile) {
    // Beyond the edges there may be anything.
    const int rows = a.lines - tile.row, columns = b.lines - tile.column;
    bool exactly = false;
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        sum[i] = sum[i] * unscale[row_of(i)] * unscale[M + column_of(i)];
        exactly |= !(fabsf(sum[i]) < __int_as_float(INFINITE)) && row_of(i) < rows && column_of(i) < columns;
    }
    if (exactly) {
        float found[N / 2];
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            found[i] = sum[i];
        }
        #pragma unroll 1
        for (int i = 0; i < N / 2; ++i) {
            if (!(fabsf(found[i]) < __int_as_float(INFINITE)) && row_of(i) < rows && column_of(i) < columns) {
                found[i] = exact_product(a, b, tile.row + row_of(i), tile.column + column_of(i), tile);
            }
        }
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            sum[i] = found[i];
        }
    }
}

#if BLOCKS_WGMMA
// Each block of a cluster has sums of a part of the terms: one of the sums' PARTS slices is added up by each, of N / PARTS columns.
template <int M, int N, int PARTS>
__device__ __forceinline__ void add_parts(float (&slice)[N / 2 / PARTS], const float (&sum)[N / 2], unsigned memory, int rank) {
    constexpr int COUNT = N / 2 / PARTS, APART = 2 * M * 16;
    const unsigned own = memory + threadIdx.x * 16;
    cluster_barrier();
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        unsigned to = address_at(own + rank * (COUNT / 4 * APART), part);
        #pragma unroll
        for (int i = 0; i < COUNT; i += 4, to += APART) {
            const float* from = sum + part * COUNT + i;
            store_four(to, from[0], from[1], from[2], from[3]);
        }
    }
    cluster_barrier();
    #pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const float4 found = load_four(own + (part * (COUNT / 4) + i / 4) * APART);
            all = make_float4(all.x + found.x, all.y + found.y, all.z + found.z, all.w + found.w);
        }
        slice[i] = all.x, slice[i + 1] = all.y, slice[i + 2] = all.z, slice[i + 3] = all.w;
    }
}
#endif

// The tiles of A B that a block computes, by 2 M TURNS + PRODUCERS threads, or CONVERTERS: the first 2 M TURNS call use(tile,
// sums) for each; a thread has the sums of row_of(i) and column_of(i). Two warp groups that take TURNS have a tile of 64 rows
// each: one multiplies while the other one stores. `a_of(tile)` and `b_of(tile)` are the operands. `shared` has STAGES * (M + N) *
// 128 + 4096 bytes, and (M + N) * 4 more for each stage if it converts. Blocks of a cluster of CLUSTER are below each other, and
// share what they copy of columns: `tiling` has tiles of M * CLUSTER rows. Those of one of PARTS each sum a part of a tile's
// terms, and use N / PARTS columns.
//
// Tensor cores cut off what doesn't fit a sum's 24 bits, and of fp8 a sum's 14. So that this doesn't add up, sums of 128 terms, WINDOW
// steps, are added to the result in fp32.
template <int M, int N, int STAGES, int CLUSTER, int TURNS = 1, int PARTS = 1, int SLOTS = 0, class Tiling, class A, class B, class Use, class Work = Nothing>
__device__ __forceinline__ void multiply(unsigned char* shared, const Tiling& tiling, A a_of, B b_of, Use use, const Work& work = {}) {
    using OfA = decltype(a_of(Tile()));
    using OfB = decltype(b_of(Tile()));
    using T = typename OfA::Element;
    using U = typename OfB::Element;
    constexpr bool PAIRS = SAME<T, float>, APART = PAIRS || sizeof(T) == 1, CONVERTS = OfA::CONVERTED || OfB::CONVERTED;
    constexpr int PRODUCING = CONVERTS ? CONVERTERS : PRODUCERS;
    static_assert(!CONVERTS || (CLUSTER == 1 && TURNS == 1 && M * N <= 128 * 128), "Registers are few where others convert");
    static_assert(M == 64 || M == 128 || (M == 192 && !APART), "Tiles have 64, 128 or 192 rows");
    static_assert(N % (OfB::TURNED || (PAIRS && !OfB::CONVERTED) ? 64 : 16) == 0 && N <= (APART || M == 192 ? 192 : 256), "and 16, 32, 48 to 256 columns");
    static_assert(TURNS == 1 || (TURNS == 2 && M == 64 && !PAIRS), "Two warp groups take turns with 64 rows each");
    constexpr int TOGETHER = CLUSTER * PARTS;
    static_assert(PARTS == 1 || (CLUSTER == 1 && TURNS == 1), "Blocks that sum parts share nothing");
    static_assert((!OfA::TURNED && !OfB::TURNED) || sizeof(T) == 2 || CONVERTS, "Tensor cores turn 16-bit numbers only");
    constexpr int STAGE = (M + N) * 128, WINDOW = PAIRS ? 4 : 1, GROUPS = M / 64 * TURNS, STAGED = STAGES * STAGE + SLOTS * M * TURNS * 128;
    // Threads that bring operands: those of one warp, where others pack.
    constexpr int BRINGING = Work::PACKS ? 32 : PRODUCING;
    static_assert(!Work::PACKS || (PAIRS && !CONVERTS && PARTS == 1), "Packed operands are packed by warps that bring none");
    // Two sets of sums of fp8 fit beside the result, so that one is added while the tensor cores fill the other. Or else two warp groups
    // issue products by turns, lest both add at the same time.
    constexpr bool TWO = sizeof(T) == 1 && M <= 128 && N <= 128 && TURNS == 1, ORDERED = sizeof(T) == 1 && M == 128 && !TWO;
    const unsigned start = (unsigned)__cvta_generic_to_shared(shared), memory = (start + 1023) & ~1023u;
    // For two tiles by turns, as the next one begins before the last one ends.
    float* unscale = reinterpret_cast<float*>(shared + (memory - start) + STAGED);
    float result[N / 2], sum[N / 2];
    const int rank = blockIdx.x % TOGETHER, apart = gridDim.x / TOGETHER;
    auto tile_of = [&](int number) {
        Tile tile = tiling.tile(number);
        if constexpr (PARTS > 1 && BLOCKS_WGMMA) {
            const int last = tile.last_step, length = (last - tile.first_step + PARTS - 1) / PARTS;
            tile.first_step = min(tile.first_step + rank * length, last);
            tile.last_step = min(tile.first_step + length, last);
        } else if constexpr (PARTS == 1) {
            tile.row += rank * M;
        }
        return tile;
    };
#if BLOCKS_WGMMA
    const unsigned full = memory + STAGED + (PAIRS ? (M + N) * 8 : 0), empty = full + 8 * STAGES, done = empty + 8 * STAGES;
    const unsigned order = done + 16, marks = order + 16, changes = marks + MARKS * STAGES;
    constexpr int EVERYONE = (1 << CLUSTER) - 1;
    const bool copies_a = a_of(Tile()).is_copied(), copies_b = b_of(Tile()).is_copied();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init_barrier(full + 8 * i, BRINGING / 32);
            init_barrier(empty + 8 * i, M / 16 * CLUSTER);
        }
        init_barrier(done, M / 16);
        init_barrier(done + 8, M / 16);
        init_barrier(order, 4);
        init_barrier(order + 8, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (CONVERTS) {
        for (int i = threadIdx.x; i < MARKS / 4 * STAGES; i += blockDim.x) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(marks + i * 4), "r"(0) : "memory");
        }
    }
    if constexpr (CLUSTER > 1) {
        cluster_barrier();
    }
    __syncthreads();
    // The same in all threads of a warp, as the compiler sees.
    const int group = __shfl_sync(0xffffffff, threadIdx.x >> 7, 0), lane = threadIdx.x % 32;
    int stage = 0, turn = 0;
    if (group >= GROUPS) {
        fewer_registers<GROUPS, CONVERTS, Work::PACKS>();
        constexpr int WARPS = PRODUCING / 32, OF_A = OfA::CONVERTED ? M / UNIT : 0, UNITS = OF_A + (OfB::CONVERTED ? N / UNIT : 0);
        // Units that a warp converts, and of how many steps it loads them before: as many as fit into registers.
        constexpr int EACH = CONVERTS ? (UNITS + WARPS - 1) / WARPS : 1, DEEP = CONVERTS && EACH < 3 ? (GROUPS == 1 ? 4 : 3) / EACH : 1;
        const int own_warp = __shfl_sync(0xffffffff, threadIdx.x >> 5, 0) - 4 * GROUPS;
        unsigned free = 1, parity = 1;
        if constexpr (Work::PACKS) {
            if (own_warp > 0) {
                work.run(tiling);
            }
        }
        #pragma unroll 1
        for (int number = own_warp * 32 < BRINGING ? blockIdx.x / TOGETHER : tiling.count(); number < tiling.count(); number += apart) {
            const Tile tile = tile_of(number);
            if constexpr (Work::PACKS) {
                if (lane == 0) {
                    work.wait(tile.batch, tiling);
                }
                __syncwarp();
            }
            const OfA a = a_of(tile);
            const OfB b = b_of(tile);
            Range of_lines[Work::PACKS ? (M + N) / 32 : 1];
            if constexpr (Work::PACKS) {
                #pragma unroll
                for (int i = 0; i < (M + N) / 32; ++i) {
                    of_lines[i] = i * 32 < M ? a.range(tile.row + i * 32 + lane) : b.range(tile.column + i * 32 - M + lane);
                }
            }
            const int bytes = (copies_a ? a.template bytes<M>(tile.row) : 0) + (copies_b ? b.template bytes<N>(tile.column) : 0);
            Share share[DEEP][EACH];
            Scales scales[EACH];
            auto fetch = [&](Share (&to)[EACH], int step) {
                if (step < tile.last_step) {
                    each_unit<WARPS, OF_A, UNITS, EACH>(own_warp,
                        [&](int i, int line) { fetch_share(a, to[i], tile.row + line, step); },
                        [&](int i, int line) { fetch_share(b, to[i], tile.column + line, step); });
                }
            };
            auto bring = [&](const Share (&from)[EACH], int step) {
                const unsigned to = memory + stage * STAGE, barrier = full + 8 * stage;
                wait_for(empty + 8 * stage, free);
                if (threadIdx.x == 128 * GROUPS) {
                    expect(barrier, bytes);
                    if (copies_a) {
                        a.template copy<M>(to, tile.row, step, barrier, 0, 0);
                    }
                    if (copies_b) {
                        b.template copy<N>(to + M * 128, tile.column, step, barrier, CLUSTER > 1 ? rank : 0, CLUSTER > 1 ? EVERYONE : 0);
                    }
                }
                if constexpr (CONVERTS) {
                    const unsigned mark = marks + MARKS * stage, change = changes + (M + N) * 4 * stage;
                    each_unit<WARPS, OF_A, UNITS, EACH>(own_warp,
                        [&](int i, int line) { keep_share<M>(a, from[i], scales[i], to, line, mark, change); },
                        [&](int i, int line) {
                            keep_share<N>(b, from[i], scales[i], to + M * 128, line, mark + M / UNIT, change + M * 4);
                        });
                } else {
                    if (!copies_a) {
                        a.template load<M>(to, tile.row, step);
                    }
                    if (!copies_b) {
                        b.template load<N>(to + M * 128, tile.column, step);
                    }
                }
                if (CONVERTS || !copies_a || !copies_b) {
                    publish();
                }
                if constexpr (PAIRS) {
                    if (step == tile.last_step - 1) {
                        wait_for(done + 8 * turn, parity);
                        float* of = unscale + turn * (M + N);
                        if constexpr (Work::PACKS) {
                            #pragma unroll
                            for (int i = 0; i < (M + N) / 32; ++i) {
                                of[i * 32 + lane] = OfA::unscale(of_lines[i]);
                            }
                        } else {
                            find_scales<M, PRODUCING>(a, of, tile.row, tile);
                            find_scales<N, PRODUCING>(b, of + M, tile.column, tile);
                        }
                        each_unit<WARPS, OF_A, UNITS, EACH>(own_warp, [&](int i, int line) { tell_scales(a, scales[i], of + line); },
                            [&](int i, int line) { tell_scales(b, scales[i], of + M + line); });
                    }
                }
                __syncwarp();
                if (lane == 0) {
                    arrive(barrier);
                }
                free ^= stage == STAGES - 1;
                stage = stage == STAGES - 1 ? 0 : stage + 1;
            };
            if constexpr (CONVERTS) {
                #pragma unroll
                for (int i = 0; i < EACH * 4; ++i) {
                    scales[i / 4].of[i % 4] = __int_as_float(UNSCALED);
                }
                #pragma unroll
                for (int i = 0; i < DEEP; ++i) {
                    fetch(share[i], tile.first_step + i);
                }
            }
            #pragma unroll 1
            for (int step = tile.first_step; step < tile.last_step; step += DEEP) {
                #pragma unroll
                for (int i = 0; i < DEEP; ++i) {
                    if (step + i < tile.last_step) {
                        bring(share[i], step + i);
                        fetch(share[i], step + i + DEEP);
                    }
                }
            }
            parity ^= turn;
            turn ^= 1;
            #pragma unroll
            for (int i = 0; PARTS > 1 && i < (number + apart < tiling.count() ? 3 : 2); ++i) {
                cluster_barrier();
            }
        }
    } else {
        more_registers<GROUPS, CONVERTS, Work::PACKS>();
        if (ORDERED && group == 1) {
            asm volatile("bar.arrive 1, 256;" ::: "memory");
        }
        unsigned parity = 0, before_it = group == 0;
        const int own = TURNS == 2 ? group : 0;
        // Beyond the stages of a tile that the other group multiplies.
        auto skip = [&](int number) {
            if (TURNS == 2 && number < tiling.count()) {
                const Tile tile = tile_of(number);
                stage += tile.last_step - tile.first_step;
                parity ^= stage / STAGES & 1;
                stage %= STAGES;
            }
        };
        auto pass_on = [&] {
            if (TURNS == 2 && lane == 0) {
                arrive(order + 8 * (own ^ 1));
            }
        };
        auto release = [&](int stage) {
            if (lane < CLUSTER) {
                if constexpr (CLUSTER == 1) {
                    arrive(empty + 8 * stage);
                } else {
                    arrive_at(empty + 8 * stage, lane);
                }
            }
        };
        if (own == 1) {
            skip(blockIdx.x / TOGETHER);
        }
        #pragma unroll 1
        for (int number = blockIdx.x / TOGETHER + own * apart; number < tiling.count(); number += apart * TURNS, turn ^= 1) {
            Tile tile = tile_of(number);
            #pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                result[i] = 0.0f;
            }
            if constexpr (TURNS == 2) {
                wait_for(order + 8 * own, before_it);
                before_it ^= 1;
                if (tile.first_step >= tile.last_step) {
                    pass_on();
                }
            }
            int step = tile.first_step, before = -1;
            // Warp groups add at different times, so that the tensor cores have something to do.
            int until = !APART ? tile.last_step : step + (group == 0 ? WINDOW : (WINDOW + 1) / 2);
            if (TWO && step < tile.last_step) {
                float other[N / 2];
                auto issue = [&](float (&to)[N / 2]) {
                    wait_for(full + 8 * stage, parity);
                    products<M, N, T, U, OfA::TURNED, OfB::TURNED>(to, memory + stage * STAGE, false);
                };
                auto next = [&] {
                    before = stage;
                    parity ^= stage == STAGES - 1;
                    stage = stage == STAGES - 1 ? 0 : stage + 1;
                };
                // The step before the one that was issued last.
                auto add = [&](float (&from)[N / 2]) {
                    wait<1, true>(from);
                    release(before);
                    add_sums(result, from);
                    next();
                };
                issue(sum);
                next();
                #pragma unroll 1
                for (++step; step + 1 < tile.last_step; step += 2) {
                    issue(other);
                    add(sum);
                    issue(sum);
                    add(other);
                }
                if (step < tile.last_step) {
                    issue(other);
                    add(sum);
                    wait<0>(other);
                    add_sums(result, other);
                } else {
                    wait<0>(sum);
                    add_sums(result, sum);
                }
                step = tile.last_step;
            }
            #pragma unroll 1
            while (!TWO && step < tile.last_step) {
                until = min(until, tile.last_step);
                bool adds = false;
                #pragma unroll 1
                do {
                    wait_for(full + 8 * stage, parity);
                    if constexpr (CONVERTS) {
                        if (step > tile.first_step && marked(marks + MARKS * stage)) {
                            wait<0>(sum);
                            const unsigned mark = marks + MARKS * stage, change = changes + (M + N) * 4 * stage;
                            #pragma unroll
                            for (int i = 0; i < N / 2; ++i) {
                                result[i] += adds ? sum[i] : 0.0f;
                                result[i] *= changed(mark, change, row_of(i)) * changed(mark, change, M + column_of(i));
                            }
                            adds = false;
                        }
                    }
                    if constexpr (ORDERED) {
                        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
                    }
                    products<M, N, T, U, OfA::TURNED, OfB::TURNED>(APART ? sum : result, memory + stage * STAGE, adds);
                    if constexpr (ORDERED) {
                        asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
                    }
                    adds = true;
                    wait<1>(APART ? sum : result);
                    if (before >= 0) {
                        release(before);
                    }
                    before = stage;
                    parity ^= stage == STAGES - 1;
                    stage = stage == STAGES - 1 ? 0 : stage + 1;
                } while (++step < until);
                until += WINDOW;
                if (step >= tile.last_step) {
                    pass_on();
                }
                wait<0>(APART ? sum : result);
                if constexpr (APART) {
                    add_sums(result, sum);
                }
            }
            if (tile.first_step < tile.last_step) {
                release(before);
                if constexpr (PAIRS) {
                    finish<M, N>(result, unscale + turn * (M + N), a_of(tile), b_of(tile), tile);
                }
            }
            if (PAIRS && lane == 0) {
                arrive(done + 8 * turn);
            }
            skip(number + apart);
            // Where the group's rows would be if it had those below the other's.
            tile.row -= own * 64;
            if constexpr (PARTS > 1) {
                float slice[N / 2 / PARTS];
                add_parts<M, N, PARTS>(slice, result, memory, rank);
                if (number + apart < tiling.count()) {
                    publish();
                    cluster_barrier();
                }
                tile.column += rank * (N / PARTS);
                use(tile, slice);
            } else {
                use(tile, result);
            }
        }
    }
    // What stores have yet to read.
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    if constexpr (CLUSTER > 1) {
        // Others may still write here, and arrive.
        __syncwarp();
        cluster_barrier();
    }
#else
    const bool produces = threadIdx.x >= 128 * GROUPS && threadIdx.x < 128 * GROUPS + PRODUCERS, multiplies = threadIdx.x < 2 * M;
    for (int number = PARTS > 1 && rank > 0 ? tiling.count() : blockIdx.x / TOGETHER; number < tiling.count(); number += apart) {
        Tile tile = tile_of(number);
        const OfA a = a_of(tile);
        const OfB b = b_of(tile);
        auto copy = [&](int step) {
            const unsigned to = memory + (step - tile.first_step) % STAGES * STAGE;
            if (step < tile.last_step) {
                load_step<M>(a, to, tile.row, step, unscale);
                load_step<N>(b, to + M * 128, tile.column, step, unscale + M);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            result[i] = 0.0f;
        }
        __syncthreads();
        if constexpr (PAIRS) {
            if (threadIdx.x >= 128 * GROUPS) {
                find_scales<M, PRODUCING>(a, unscale, tile.row, tile);
                find_scales<N, PRODUCING>(b, unscale + M, tile.column, tile);
            }
            __syncthreads();
        }
        for (int step = tile.first_step; produces && step < tile.first_step + STAGES - 1; ++step) {
            copy(step);
        }
        for (int step = tile.first_step; step < tile.last_step; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            const int done = step - tile.first_step;
            if (produces) {
                // Into the stage of the step before, with which everyone is done.
                copy(step + STAGES - 1);
            } else if (multiplies) {
                products<M, N, T, U, OfA::TURNED, OfB::TURNED>(APART ? sum : result, memory + done % STAGES * STAGE,
                    !APART || done % WINDOW != 0);
                if (APART && (done % WINDOW == WINDOW - 1 || step == tile.last_step - 1)) {
                    #pragma unroll
                    for (int i = 0; i < N / 2; ++i) {
                        result[i] += sum[i];
                    }
                }
            }
        }
        __syncthreads();
        if (multiplies) {
            if constexpr (PAIRS) {
                finish<M, N>(result, unscale, a, b, tile);
            }
            #pragma unroll
            for (int part = 0; part < PARTS; ++part, tile.column += N / PARTS) {
                float slice[N / 2 / PARTS];
                #pragma unroll
                for (int i = 0; i < N / 2 / PARTS; ++i) {
                    slice[i] = result[part * (N / 2 / PARTS) + i];
                }
                use(tile, slice);
            }
        }
    }
#endif
}

// Four words of each of four neighbouring threads, turned: a thread gets one word of each.
__device__ __forceinline__ void turn_four(unsigned (&words)[4]) {
    #pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        const bool upper = threadIdx.x & apart;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((i & apart) == 0) {
                const unsigned found = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + apart], apart);
                words[i] = upper ? found : words[i];
                words[i + apart] = upper ? words[i + apart] : found;
            }
        }
    }
}

// Store a thread's sums from FIRST to LAST, WIDTH neighbours at once.
template <int WIDTH, int FIRST, int LAST, int COUNT, class T, class Value, class Index>
__device__ __forceinline__ void store_some(T* to, const float (&sum)[COUNT], const Tile& tile, int rows, int columns, Value value,
        Index index) {
    #pragma unroll
    for (int half = 0; half < 4; half += 2) {
        // At the edges, too, as many at once as there are; what is beyond them is computed of the last ones.
        const int row = tile.row + row_of(half), inside = min(row, rows - 1), own = (threadIdx.x & 3) * WIDTH;
        const int left = row < rows ? columns - tile.column - own : 0;
        T* line = to + index(inside, tile.column) + own;
        const bool aligned = (size_t)line % sizeof(Together<T, WIDTH>) == 0;
        #pragma unroll
        for (int i = FIRST; i < LAST; i += WIDTH * 2) {
            union {
                Together<T, WIDTH> found;
                unsigned words[4];
            };
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const int at = i + half + j / 2 * 4 + j % 2;
                found.of[j] = value(inside, min(tile.column + column_of(at), columns - 1), sum[at]);
            }
            if constexpr (WIDTH == 8) {
                turn_four(words);
            }
            if (aligned && left >= i * 2 + WIDTH) {
                *reinterpret_cast<Together<T, WIDTH>*>(line + i * 2) = found;
            } else {
                #pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    if (left > i * 2 + j) {
                        line[i * 2 + j] = found.of[j];
                    }
                }
            }
        }
    }
}

// Store value(row, column, sum) of a thread's sums, from FIRST on, inside of the matrix at to[index(row, column)], where columns are
// neighbours.
template <int FIRST = 0, int N, class T, class Value, class Index>
__device__ __forceinline__ void store(T* to, const float (&sum)[N], const Tile& tile, int rows, int columns, Value value,
        Index index) {
    // Of 16-bit numbers, four threads have 8 neighbours each once they have exchanged them.
    constexpr int WIDE = sizeof(T) == 2 ? FIRST + (N - FIRST) / 16 * 16 : FIRST;
    if constexpr (WIDE > FIRST) {
        store_some<8, FIRST, WIDE>(to, sum, tile, rows, columns, value, index);
    }
    if constexpr (N > WIDE) {
        store_some<2, WIDE, N>(to, sum, tile, rows, columns, value, index);
    }
}

// The same by way of shared memory, from which TMA stores boxes of 16 rows and 128 bytes while the block goes on. A warp has SLOTS of
// them, behind the stages; columns that fill none are stored at once.
template <int M, int N, int STAGES, int SLOTS, int COUNT, class T, class Value, class Index>
__device__ __forceinline__ void store_boxes(const TensorMap* map, unsigned char* shared, T* to, const float (&sum)[COUNT], const Tile& tile,
        int rows, int columns, Value value, Index index) {
#if BLOCKS_WGMMA
    constexpr int WIDE = 128 / sizeof(T), BOXES = COUNT * 2 / WIDE;
    static_assert(SLOTS == 0 || sizeof(T) == 2 || sizeof(T) == 4, "Pairs of 16 or 32 bits");
    if constexpr (SLOTS > 0 && BOXES > 0) {
        if (map->valid()) {
            const unsigned start = ((unsigned)__cvta_generic_to_shared(shared) + 1023) & ~1023u, lane = threadIdx.x % 32;
            const unsigned own = start + STAGES * (M + N) * 128 + (threadIdx.x >> 5) * (SLOTS * 2048);
            #pragma unroll
            for (int box = 0; box < BOXES; ++box) {
                const unsigned slot = own + box % SLOTS * 2048;
                if (lane == 0 && box == 0) {
                    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                } else if (lane == 0 && box >= SLOTS) {
                    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(SLOTS - 1) : "memory");
                }
                __syncwarp();
                // All values first, lest what they are loaded from is waited for one by one.
                Together<T, 2> pairs[WIDE / 4];
                #pragma unroll
                for (int pair = 0; pair < WIDE / 4; ++pair) {
                    const int i = box * (WIDE / 2) + pair * 2, row = min(tile.row + row_of(i), rows - 1), column = tile.column + column_of(i);
                    pairs[pair].of[0] = value(row, min(column, columns - 1), sum[i]);
                    pairs[pair].of[1] = value(row, min(column + 1, columns - 1), sum[i + 1]);
                }
                #pragma unroll
                for (int pair = 0; pair < WIDE / 4; ++pair) {
                    const int down = (lane >> 2) + (pair & 1) * 8, byte = column_of(pair * 2) * sizeof(T);
                    const unsigned at = slot + swizzled(down, byte / 16) + byte % 16;
                    if constexpr (sizeof(T) == 2) {
                        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(reinterpret_cast<const unsigned&>(pairs[pair])) : "memory");
                    } else {
                        const uint2 words = reinterpret_cast<const uint2&>(pairs[pair]);
                        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(words.x), "r"(words.y) : "memory");
                    }
                }
                publish();
                __syncwarp();
                if (lane == 0) {
                    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                                 ::"l"(map), "r"(tile.column + box * WIDE), "r"(tile.row + (int)(threadIdx.x >> 5) * 16), "r"(tile.batch),
                                 "r"(slot) : "memory");
                    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                }
            }
            store<BOXES * WIDE / 2>(to, sum, tile, rows, columns, value, index);
            return;
        }
    }
#endif
    store(to, sum, tile, rows, columns, value, index);
}

// The two numbers of 16 bits, of those that a warp has of an 8 x 8 matrix, that are the thread's of the transposed matrix.
__device__ __forceinline__ unsigned transposed(unsigned pair) {
    const int from = (threadIdx.x & 3) * 8 + ((threadIdx.x & 31) >> 3);
    const unsigned first = __shfl_sync(0xffffffff, pair, from), other = __shfl_sync(0xffffffff, pair, from + 4);
    return __byte_perm(first, other, threadIdx.x & 4 ? 0x7632 : 0x5410);
}

// The same of a product computed with its operands exchanged: a tile's rows are the `columns` of what is stored, and neighbours.
template <int N, class T, class Value, class Index>
__device__ __forceinline__ void store_transposed(T* to, const float (&sum)[N], const Tile& tile, int columns, int rows, Value value,
        Index index) {
    auto stored = [&](int i) {
        return (T)value(min(tile.column + column_of(i), rows - 1), min(tile.row + row_of(i), columns - 1), sum[i]);
    };
    if constexpr (sizeof(T) == 2) {
        // Four matrices of 8 x 8 numbers at once, of which a thread gets 8 neighbours of one.
        const int part = threadIdx.x & 3, column = tile.row + (threadIdx.x >> 5) * 16 + (part & 1) * 8, left = columns - column;
        #pragma unroll
        for (int i = 0; i < N; i += 8) {
            union {
                Together<T, 8> found;
                unsigned words[4];
            };
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
                found.of[j] = i + j < N ? stored(i + j) : stored(i);
            }
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                words[j] = transposed(words[j]);
            }
            turn_four(words);
            const int row = tile.column + (i / 4 + (part >> 1)) * 8 + ((threadIdx.x & 31) >> 2);
            if (row < min(rows, tile.column + N * 2) && left > 0) {
                T* line = to + index(row, column);
                if (left >= 8 && (size_t)line % 16 == 0) {
                    *reinterpret_cast<Together<T, 8>*>(line) = found;
                } else {
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        if (left > j) {
                            line[j] = found.of[j];
                        }
                    }
                }
            }
        }
    } else {
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            const int row = tile.column + column_of(i), column = tile.row + row_of(i);
            if (row < rows && column < columns) {
                to[index(row, column)] = value(row, column, sum[i]);
            }
        }
    }
}

// ---- Products of few lines ------------------------------------------------------------------------------------------------
// Reading the other operand takes longest, so nothing is done but that, in fp32 arithmetic.

// The sum of a tile of one element.
struct One {
    float sum;
};

template <class T, class Value, class Index>
__device__ __forceinline__ void store(T* to, const One& of, const Tile& tile, int, int, Value value, Index index) {
    to[index(tile.row, tile.column)] = value(tile.row, tile.column, of.sum);
}

template <class T, class Value, class Index>
__device__ __forceinline__ void store_transposed(T* to, const One& of, const Tile& tile, int, int, Value value, Index index) {
    to[index(tile.column, tile.row)] = value(tile.column, tile.row, of.sum);
}

// Add up each of COUNT numbers, a power of two, over a warp: of 32 and more, a lane has the sums of as many neighbours, or else 32 / COUNT
// lanes have the same.
template <int COUNT>
__device__ __forceinline__ void add_lanes(float (&v)[COUNT]) {
    int left = COUNT;
    #pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        const bool upper = threadIdx.x & apart;
        left /= 2;
        #pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            if (i < left) {
                const float sent = upper ? v[i] : v[i + left];
                v[i] = (upper ? v[i + left] : v[i]) + __shfl_xor_sync(0xffffffff, sent, apart);
            }
        }
        if (left == 0) {
            v[0] += __shfl_xor_sync(0xffffffff, v[0], apart);
        }
    }
}

// Add DEEP terms' products, or of chunks of terms APART from each other, of FEW rows of A and WIDE columns of B. If WHOLE, all is aligned and
// inside, but for lines: what is beyond the edges is computed of the last ones, and not used.
template <bool WHOLE, int DEEP, int APART, int WIDE, int FEW, class A, class B>
__device__ __forceinline__ void add_terms(float (&sum)[WIDE][FEW], const A& a, const B& b, int row, int column, int term) {
    using T = typename A::Element;
    constexpr bool BY_TERM = !B::TURNED;
    constexpr int TERMS = 16 / sizeof(T), CHUNKS = BY_TERM ? DEEP : DEEP / TERMS;
    Together<T, BY_TERM ? TERMS : WIDE> from[BY_TERM ? DEEP * WIDE : DEEP];
    #pragma unroll
    for (int i = 0; i < (BY_TERM ? DEEP * WIDE : DEEP); ++i) {
        if constexpr (BY_TERM) {
            const int at = column + i % WIDE;
            from[i] = b.template some<TERMS, true, WHOLE>(WHOLE ? min(at, b.lines - 1) : at, term + i / WIDE * APART);
        } else {
            from[i] = b.template some<WIDE, false, WHOLE>(column, term + i);
        }
    }
    #pragma unroll
    for (int i = 0; i < CHUNKS * FEW; ++i) {
        const int at = row + i % FEW, chunk = i / FEW;
        const Together<T, TERMS> x = a.template some<TERMS, true, WHOLE>(WHOLE ? min(at, a.lines - 1) : at, term + chunk * APART);
        #pragma unroll
        for (int j = 0; j < WIDE * TERMS; ++j) {
            const int k = BY_TERM ? j % TERMS : j / WIDE, wide = BY_TERM ? j / TERMS : j % WIDE;
            const T y = BY_TERM ? from[chunk * WIDE + wide].of[k] : from[chunk * TERMS + k].of[wide];
            sum[wide][i % FEW] = fmaf((float)x.of[k], (float)y, sum[wide][i % FEW]);
        }
        if (i % 4 == 3) {
            // Lest all of them are loaded at once, and spilled.
            asm volatile("" ::: "memory");
        }
    }
}

// use(tile, sum) for the elements of A B, each a tile, where A has few rows. A block has FEW of them, and COLUMNS of B, at least 32 if those
// are neighbours; its warps share the terms, and where terms are neighbours the columns, too. `a_of(tile)` and `b_of(tile)` are `Stored`.
template <int FEW, int COLUMNS, int THREADS, class A, class B, class Use>
__device__ __forceinline__ void multiply_few(int rows, int columns, A a_of, B b_of, Use use) {
    using T = typename decltype(a_of(Tile()))::Element;
    constexpr bool BY_TERM = !decltype(b_of(Tile()))::TURNED;
    constexpr int MOST = FEW > 8 ? 4 : 8, WIDE = !BY_TERM ? COLUMNS / 32 : COLUMNS < MOST ? COLUMNS : MOST;
    constexpr int ACROSS = BY_TERM ? COLUMNS / WIDE : 1, WARPS = THREADS / 32, PARTS = WARPS / ACROSS, TERMS = 16 / sizeof(T);
    __shared__ float parts[PARTS][COLUMNS * FEW];
    const int down = (rows + FEW - 1) / FEW, across = (columns + COLUMNS - 1) / COLUMNS, number = blockIdx.x / down;
    Tile tile = {};
    tile.row = blockIdx.x % down * FEW, tile.column = number % across * COLUMNS, tile.batch = number / across;
    const auto a = a_of(tile);
    const auto b = b_of(tile);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / ACROSS;
    const int own = BY_TERM ? warp % ACROSS * WIDE : lane * WIDE;
    constexpr int DEEP = !BY_TERM ? (WIDE == 1 ? 16 : 8) : (FEW > 8 ? 4 : 8) / WIDE, APART = BY_TERM ? PARTS * 32 * TERMS : TERMS;
    const bool aligned = is_aligned(a.data, a.stride * sizeof(T)) && is_aligned(b.data, b.stride * sizeof(T))
        && (BY_TERM || tile.column + own + WIDE <= columns);
    float sum[WIDE][FEW] = {};
    #pragma unroll 1
    for (int term = BY_TERM ? (part * 32 + lane) * TERMS : part * DEEP; term < a.terms; term += BY_TERM ? APART * DEEP : PARTS * DEEP) {
        if (aligned && term + (BY_TERM ? (DEEP - 1) * APART + TERMS : DEEP) <= a.terms) {
            add_terms<true, DEEP, APART>(sum, a, b, tile.row, tile.column + own, term);
        } else {
            add_terms<false, DEEP, APART>(sum, a, b, tile.row, tile.column + own, term);
        }
    }
    if constexpr (BY_TERM) {
        constexpr int COUNT = WIDE * FEW;
        float (&sums)[COUNT] = reinterpret_cast<float (&)[COUNT]>(sum);
        add_lanes(sums);
        #pragma unroll
        for (int i = 0; i < (COUNT + 31) / 32; ++i) {
            if (COUNT >= 32 || lane % (32 / COUNT) == 0) {
                parts[part][own * FEW + lane * COUNT / 32 + i] = sums[i];
            }
        }
    } else {
        #pragma unroll
        for (int i = 0; i < FEW * WIDE; ++i) {
            parts[part][i / WIDE * COLUMNS + own + i % WIDE] = sum[i % WIDE][i / WIDE];
        }
    }
    __syncthreads();
    const Tile first = tile;
    for (int i = threadIdx.x; i < COLUMNS * FEW; i += THREADS) {
        One found = {0.0f};
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            found.sum += parts[part][BY_TERM ? i % COLUMNS * FEW + i / COLUMNS : i];
        }
        tile.row = first.row + i / COLUMNS, tile.column = first.column + i % COLUMNS;
        if (tile.row < rows && tile.column < columns) {
            use(tile, found);
        }
    }
}

}  // namespace blocks
