// Building blocks of attention, softmax(Q K^T) V, for NVRTC and nvcc, sm_80 and later. docs/blocks.md describes them.
#pragma once

#include "blocks.cuh"

#include <cuda_bf16.h>
#include <math_constants.h>

namespace attention {

// ---- Products of fp32 matrices that are split into pairs of fp16 on their way to shared memory -----------------------------
// In shared memory a step of 32 terms of a line has 128 bytes, as in blocks.cuh: 32 high parts, then 32 low ones, swizzled.
// Numbers are scaled by powers of two that are the same for all, so those of a block that don't fit are multiplied in fp32.

constexpr int THREADS = 256, ROWS = 128, STEP = 32;
constexpr float SCALE = 1024.0f, LARGEST = 63.0f, LEAST = 1.0f / 4096.0f;
constexpr float WEIGHT_SCALE = 32768.0f;
constexpr float LOG2E = 1.4426950408889634f;

#if BLOCKS_WGMMA
using blocks::descriptor;
using blocks::wgmma;
#endif

__device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
    high = *reinterpret_cast<const unsigned*>(&h);
    low = *reinterpret_cast<const unsigned*>(&l);
}

__device__ __forceinline__ void store_split(unsigned to, float4 v, unsigned to_low) {
    unsigned high[2], low[2];
    split(v.x, v.y, high[0], low[0]);
    split(v.z, v.w, high[1], low[1]);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(high[0]), "r"(high[1]) : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to_low), "r"(low[0]), "r"(low[1]) : "memory");
}

__device__ __forceinline__ float largest(float most, float4 v) {
    return fmaxf(fmaxf(fmaxf(most, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
}

__device__ __forceinline__ float4 times(float4 v, float by) {
    return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

// Four neighbours, which are either all inside of a matrix or zeros: rows of other lengths are computed in fp32.
__device__ __forceinline__ float4 load_four(const float* at, bool inside) {
    return inside ? *reinterpret_cast<const float4*>(at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ unsigned aligned(const unsigned char* shared) {
    return ((unsigned)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
}

// ---- Attention in one kernel, for heads of up to HEAD numbers of 16 bits ----------------------------------------------------
// A warp group has 64 queries, whose outputs stay in registers, and takes KEYS keys at a time. While the tensor cores weigh the
// values of some keys and multiply the next ones, it computes the weights of those. Two warp groups give the tensor cores work by
// turns; a third one brings operands, of the next queries too.

__device__ __forceinline__ unsigned packed(__half, float x, float y) {
    const __half2 found = __floats2half2_rn(x, y);
    return *reinterpret_cast<const unsigned*>(&found);
}

__device__ __forceinline__ unsigned packed(__nv_bfloat16, float x, float y) {
    const __nv_bfloat162 found = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const unsigned*>(&found);
}

__device__ __forceinline__ float power_of_two(float x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}

#if BLOCKS_WGMMA
// Products of a warp group with A in registers, and B's lines along its terms where TURNED.
#define ATTENTION_ISSUE(TYPE, COUNT, N, A0, A1, A2, A3, B, ADDS, TURN) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" \
                 BLOCKS_LIST_##COUNT "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, " TURN ";}" \
                 : BLOCKS_SUMS_##COUNT : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TURNED))
#define ATTENTION_PRODUCT(COUNT, N, ...) \
template <class T, int TURNED> \
__device__ __forceinline__ void wgmma_of_registers(float (&d)[COUNT], const unsigned* a, unsigned long long b, int adds) { \
    if constexpr (blocks::SAME<T, __nv_bfloat16>) { \
        ATTENTION_ISSUE("bf16", COUNT, N, __VA_ARGS__); \
    } else { \
        ATTENTION_ISSUE("f16", COUNT, N, __VA_ARGS__); \
    } \
}
ATTENTION_PRODUCT(8, "16", "%8", "%9", "%10", "%11", "%12", "%13", "%14")
ATTENTION_PRODUCT(16, "32", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
ATTENTION_PRODUCT(24, "48", "%24", "%25", "%26", "%27", "%28", "%29", "%30")
ATTENTION_PRODUCT(32, "64", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
ATTENTION_PRODUCT(40, "80", "%40", "%41", "%42", "%43", "%44", "%45", "%46")
ATTENTION_PRODUCT(48, "96", "%48", "%49", "%50", "%51", "%52", "%53", "%54")
ATTENTION_PRODUCT(56, "112", "%56", "%57", "%58", "%59", "%60", "%61", "%62")
ATTENTION_PRODUCT(64, "128", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
ATTENTION_PRODUCT(72, "144", "%72", "%73", "%74", "%75", "%76", "%77", "%78")
ATTENTION_PRODUCT(80, "160", "%80", "%81", "%82", "%83", "%84", "%85", "%86")
ATTENTION_PRODUCT(88, "176", "%88", "%89", "%90", "%91", "%92", "%93", "%94")
ATTENTION_PRODUCT(96, "192", "%96", "%97", "%98", "%99", "%100", "%101", "%102")
ATTENTION_PRODUCT(104, "208", "%104", "%105", "%106", "%107", "%108", "%109", "%110")
ATTENTION_PRODUCT(112, "224", "%112", "%113", "%114", "%115", "%116", "%117", "%118")
ATTENTION_PRODUCT(120, "240", "%120", "%121", "%122", "%123", "%124", "%125", "%126")
ATTENTION_PRODUCT(128, "256", "%128", "%129", "%130", "%131", "%132", "%133", "%134")

// Issue the products of a warp group's queries and KEYS keys.
template <int HEAD, int KEYS, class T>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const unsigned long long a = descriptor(queries + (threadIdx.x >> 7) * (64 * 128)), b = descriptor(keys);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        wgmma<T>(scores, a + (k >> 2) * (ROWS * 8) + (k & 3) * 2, b + (k >> 2) * (KEYS * 8) + (k & 3) * 2, k > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Issue the products of a warp group's weights and KEYS values.
template <int HEAD, int KEYS, class T>
__device__ __forceinline__ void weigh_values(float (&sum)[HEAD / 2], const unsigned (&weights)[KEYS / 4], unsigned values) {
    const unsigned long long b = descriptor(values, KEYS * 128);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        wgmma_of_registers<T, 1>(sum, weights + 4 * k, b + k * 128, 1);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int UNFINISHED, int COUNT>
__device__ __forceinline__ void wait_for(float (&sum)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNFINISHED) : "memory");
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+f"(sum[i])::"memory");
    }
}
#else
template <int HEAD, int KEYS, class T>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const int line = (threadIdx.x >> 5) * 16, first = threadIdx.x >> 3 & 1, second = threadIdx.x >> 4 & 1;
    #pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
        scores[i] = 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        unsigned a[4], b[4];
        const int block = k >> 2, chunk = (k & 3) * 2;
        blocks::load_fragments(a, blocks::fragment(queries + block * (ROWS * 128), line + first * 8, chunk + second));
        #pragma unroll
        for (int n = 0; n < KEYS; n += 16) {
            blocks::load_fragments(b, blocks::fragment(keys + block * (KEYS * 128), n + second * 8, chunk + first));
            blocks::mma<T>(scores + n / 2, a, b[0], b[1]);
            blocks::mma<T>(scores + n / 2 + 4, a, b[2], b[3]);
        }
    }
}

template <int HEAD, int KEYS, class T>
__device__ __forceinline__ void weigh_values(float (&sum)[HEAD / 2], const unsigned (&weights)[KEYS / 4], unsigned values) {
    const int first = threadIdx.x >> 3 & 1, second = threadIdx.x >> 4 & 1;
    #pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        #pragma unroll
        for (int n = 0; n < HEAD; n += 16) {
            unsigned b[4];
            const unsigned block = values + (n >> 6) * (KEYS * 128);
            blocks::load_fragments<true>(b, blocks::fragment(block, k * 16 + first * 8, (n >> 3 & 7) + second));
            blocks::mma<T>(sum + n / 2, weights + 4 * k, b[0], b[1]);
            blocks::mma<T>(sum + n / 2 + 4, weights + 4 * k, b[2], b[3]);
        }
    }
}

template <int UNFINISHED, int COUNT>
__device__ __forceinline__ void wait_for(float (&)[COUNT]) {}
#endif

// A row's largest score so far, and the sum of its weights, of which a thread has those of two rows.
struct Softmax {
    float top[2] = {-CUDART_INF_F, -CUDART_INF_F}, total[2] = {0.0f, 0.0f};

    // Replace scores, which are in units of `unit` / log2(e), by weights times 2^exponent; returns what is to be multiplied with sums of
    // earlier weights.
    template <int COUNT>
    __device__ __forceinline__ float2 weigh(float (&scores)[COUNT], float exponent = 0.0f, float unit = LOG2E) {
        float shares[2];
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[half];
            #pragma unroll
            for (int i = 2 * half; i < COUNT; i += 4) {
                most = fmaxf(most, fmaxf(scores[i], scores[i + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
            const float origin = most == -CUDART_INF_F ? 0.0f : most * unit;
            shares[half] = power_of_two(top[half] * unit - origin);
            const float base = exponent - origin;
            float sum = 0.0f;
            #pragma unroll
            for (int i = 2 * half; i < COUNT; i += 4) {
                scores[i] = power_of_two(fmaf(scores[i], unit, base));
                scores[i + 1] = power_of_two(fmaf(scores[i + 1], unit, base));
                sum += scores[i] + scores[i + 1];
            }
            total[half] = total[half] * shares[half] + sum;
            top[half] = most;
        }
        return make_float2(shares[0], shares[1]);
    }

    __device__ __forceinline__ void finish() {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            total[half] += __shfl_xor_sync(0xffffffff, total[half], 1);
            total[half] += __shfl_xor_sync(0xffffffff, total[half], 2);
        }
    }

    static __device__ __forceinline__ float hidden() { return -CUDART_INF_F; }
    __device__ __forceinline__ bool fits() const { return true; }
};

// Scores that are weights themselves, which have no sum: with an exponent they are scaled by a power of two, so that a row's largest
// weight so far is between 2^(exponent - 1) and 2^exponent.
template <class Score>
struct Weight {
    Score score;

    __device__ __forceinline__ float operator()(int row, int column, float product) const { return score(row, column, product); }
};

template <class Score>
__device__ __forceinline__ Weight<Score> weight(Score score) {
    return {score};
}

struct Plain {
    float top[2] = {0.0f, 0.0f}, total[2] = {1.0f, 1.0f};

    template <int COUNT>
    __device__ __forceinline__ float2 weigh(float (&scores)[COUNT], float exponent = 0.0f, float = 1.0f) {
        float shares[2] = {1.0f, 1.0f};
        #pragma unroll
        for (int half = 0; half < 2 && exponent > 0.0f; ++half) {
            float most = top[half];
            #pragma unroll
            for (int i = 2 * half; i < COUNT; i += 4) {
                most = fmaxf(most, fmaxf(fabsf(scores[i]), fabsf(scores[i + 1])));
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
            const int found = max((int)(__float_as_uint(most) >> 23), 64) - 127;
            const float scale = blocks::power_of_two(min((int)exponent - 1 - found, 126));
            shares[half] = top[half] > 0.0f ? scale / total[half] : 1.0f;
            #pragma unroll
            for (int i = 2 * half; i < COUNT; i += 4) {
                scores[i] *= scale;
                scores[i + 1] *= scale;
            }
            total[half] = scale;
            top[half] = most;
        }
        return make_float2(shares[0], shares[1]);
    }

    __device__ __forceinline__ void finish() const {}
    static __device__ __forceinline__ float hidden() { return 0.0f; }
    __device__ __forceinline__ bool fits() const { return fmaxf(top[0], top[1]) < CUDART_INF_F; }
};

template <class Score>
struct WeightsOf {
    using Type = Softmax;
};
template <class Score>
struct WeightsOf<Weight<Score>> {
    using Type = Plain;
};

__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ float number(__half x) { return __half2float(x); }
__device__ __forceinline__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rows of a matrix in memory.
template <class T>
struct Rows {
    const T* data;
    int lines, terms;
    long long stride;
    bool vector = blocks::is_aligned(data, stride * sizeof(T));
};

// As `attend`, in fp32 arithmetic: for what the tensor cores can't do. A warp has a query and 32 outputs at a time.
template <bool CAUSAL, class T, class Score, class Put>
__device__ __noinline__ void attend_exactly(Rows<T> queries, Rows<T> keys, Rows<T> values, int first, Score score, Put put) {
    using Weights = typename WeightsOf<Score>::Type;
    constexpr bool NORMAL = blocks::SAME<Weights, Softmax>;
    const int lane = threadIdx.x & 31;
    for (int row = first + (threadIdx.x >> 5); row < min(first + ROWS, queries.lines); row += THREADS / 32) {
        for (int column = lane; column - lane < values.terms; column += 32) {
            float top = -CUDART_INF_F, total = 0.0f, sum = 0.0f;
            for (int key = lane; key - lane < keys.lines; key += 32) {
                float found = 0.0f;
                for (int k = 0; k < queries.terms && key < keys.lines; ++k) {
                    found = fmaf(number(queries.data[row * queries.stride + k]), number(keys.data[key * keys.stride + k]), found);
                }
                found = key < keys.lines && (!CAUSAL || key <= row) ? score(row, key, found) : Weights::hidden();
                float most = fmaxf(top, found);
                #pragma unroll
                for (int apart = 1; apart < 32; apart *= 2) {
                    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, apart));
                }
                const float origin = most == -CUDART_INF_F ? 0.0f : most;
                const float share = NORMAL ? exp2f((top - origin) * LOG2E) : 1.0f;
                const float weight = NORMAL ? exp2f((found - origin) * LOG2E) : found;
                top = most;
                total = total * share + weight;
                sum *= share;
                for (int i = 0; i < min(32, keys.lines - (key - lane)); ++i) {
                    const float of_key = __shfl_sync(0xffffffff, weight, i);
                    if (column < values.terms) {
                        sum = fmaf(of_key, number(values.data[(key - lane + i) * values.stride + column]), sum);
                    }
                }
            }
            #pragma unroll
            for (int apart = 1; apart < 32; apart *= 2) {
                total += __shfl_xor_sync(0xffffffff, total, apart);
            }
            if (column < values.terms) {
                put(row, column, NORMAL ? sum / total : sum);
            }
        }
    }
}

#if BLOCKS_WGMMA
// Barriers of the two warp groups, which each waits at for its turn.
__device__ __forceinline__ void wait_for_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}

__device__ __forceinline__ void give_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(group + 1) : "memory");
}

// Whole operands' parts in shared memory, full or empty by turns.
template <int STAGES>
struct Pipe {
    unsigned memory, barriers, bytes;
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void init(int consumers) const {
        for (int i = 0; i < STAGES; ++i) {
            blocks::init_barrier(barriers + 16 * i, blocks::PRODUCERS / 32);
            blocks::init_barrier(barriers + 16 * i + 8, consumers);
        }
    }

    __device__ __forceinline__ void next() {
        parity ^= stage == STAGES - 1;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    __device__ __forceinline__ unsigned wait() const {
        blocks::wait_for(barriers + 16 * stage, parity);
        return memory + stage * bytes;
    }

    __device__ __forceinline__ void release() {
        if (threadIdx.x % 32 == 0) {
            blocks::arrive(barriers + 16 * stage + 8);
        }
        next();
    }

    // By the producers: LINES lines of up to WIDTH numbers, as boxes of 64 neighbours.
    template <int LINES, int WIDTH, class Matrix>
    __device__ __forceinline__ void bring(const Matrix& from, int first) {
        const unsigned barrier = barriers + 16 * stage, to = memory + stage * bytes;
        blocks::wait_for(barrier + 8, parity ^ 1);
        if (!from.is_copied()) {
            for (int i = 0; i < WIDTH / 64; ++i) {
                from.template load<LINES>(to + i * LINES * 128, first, i);
            }
            blocks::publish();
        } else if (threadIdx.x % blocks::PRODUCERS == 0) {
            blocks::expect(barrier, LINES * WIDTH * 2);
            for (int i = 0; i < WIDTH / 64; ++i) {
                from.template copy<LINES>(to + i * LINES * 128, first, i, barrier, 0, 0);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            blocks::arrive(barrier);
        }
        next();
    }
};
#endif

// Scores that are products times a positive factor, which costs nothing: the exponential multiplies anyway.
struct Multiple {
    float factor;

    __device__ __forceinline__ float operator()(int, int, float product) const { return product * factor; }
};

template <class T>
struct Pointed;
template <class T>
struct Pointed<const T*> {
    using Type = T;
};

// Scores with a number each that is read from memory at at(row, column, 0), where those of neighbours in a row are neighbours.
template <class At, class Score>
struct Beside {
    At at;
    Score score;

    __device__ __forceinline__ float operator()(int row, int column, float product) const {
        return score(row, column, product, *at(row, column, 0.0f));
    }
};

template <class At, class Score>
__device__ __forceinline__ Beside<At, Score> beside(At at, Score score) {
    return {at, score};
}

// Numbers that the scores of a tile need.
template <int COUNT, class Score>
struct Numbers {
    __device__ __forceinline__ void fetch(const Score&, int, int, bool) {}
    __device__ __forceinline__ void arrange() {}
    __device__ __forceinline__ bool there() const { return true; }

    __device__ __forceinline__ float score(const Score& of, int row, int column, float product, int) const {
        return of(row, column, product);
    }
};

// Of 32 neighbours in a row a thread loads eight at once, and gives three others two of them each.
template <int COUNT, class At, class Score>
struct Numbers<COUNT, Beside<At, Score>> {
    using T = typename Pointed<decltype(((At*)nullptr)->operator()(0, 0, 0.0f))>::Type;
    struct alignas(2 * sizeof(T)) Pair {
        T of[2];
    };
    struct alignas(sizeof(T) < 2 ? 8 : 16) Eight {
        Pair of[4];
    };
    static constexpr bool SMALL = sizeof(T) <= 2;
    Eight eights[COUNT / 8];
    bool found;

    // Of a tile at `row` and `column`, if it is whole and eight neighbours are aligned.
    __device__ __forceinline__ void fetch(const Beside<At, Score>& of, int row, int column, bool whole) {
        const T* from[2];
        found = whole && SMALL;
        #pragma unroll
        for (int half = 0; half < 2 && found; ++half) {
            from[half] = of.at(row + blocks::row_of(2 * half), column, 0.0f) + (threadIdx.x & 3) * 8;
            found = (unsigned long long)from[half] % sizeof(Eight) == 0;
        }
        found = __all_sync(0xffffffff, found);
        #pragma unroll
        for (int i = 0; i < COUNT / 8 && found; ++i) {
            eights[i] = *reinterpret_cast<const Eight*>(from[i & 1] + i / 2 * 32);
        }
    }

    static __device__ __forceinline__ void exchange(Pair& left, Pair& right, int apart) {
        using Word = blocks::Unsigned<SMALL ? sizeof(Pair) : 4>;
        Word &first = reinterpret_cast<Word&>(left), &second = reinterpret_cast<Word&>(right);
        const bool upper = threadIdx.x & apart;
        const Word got = __shfl_xor_sync(0xffffffff, (unsigned)(upper ? first : second), apart);
        first = upper ? got : first;
        second = upper ? second : got;
    }

    // Have the numbers of the columns that a thread has.
    __device__ __forceinline__ void arrange() {
        #pragma unroll
        for (int i = 0; i < COUNT / 8 && SMALL; ++i) {
            Pair* pairs = eights[i].of;
            exchange(pairs[0], pairs[1], 1);
            exchange(pairs[2], pairs[3], 1);
            exchange(pairs[0], pairs[2], 2);
            exchange(pairs[1], pairs[3], 2);
        }
    }

    __device__ __forceinline__ bool there() const { return found; }

    __device__ __forceinline__ float score(const Beside<At, Score>& of, int row, int column, float product, int i) const {
        return of.score(row, column, product, eights[i / 16 * 2 + (i >> 1 & 1)].of[i / 4 % 4].of[i & 1]);
    }
};

// ROWS queries from `first` on, whose outputs are stored at to[index(row, column)]; score(row, column, product) is what softmax is
// taken of.
template <class Matrix, class Score, class T, class Index>
struct Part {
    using Weights = typename WeightsOf<Score>::Type;
    Matrix queries, keys, values;
    int first;
    Score score;
    T* to;
    Index index;

    // Tiles of KEYS keys that count.
    template <int KEYS, bool CAUSAL>
    __device__ __forceinline__ int tiles() const {
        return ((CAUSAL ? min(keys.lines, first + ROWS) : keys.lines) + KEYS - 1) / KEYS;
    }

    template <int HEAD>
    __device__ __forceinline__ bool fits() const { return queries.terms <= HEAD && values.terms <= HEAD && unit() > 0.0f; }

    // What a score is multiplied with in an exponent of two.
    __device__ __forceinline__ float unit() const {
        if constexpr (blocks::SAME<Score, Multiple>) {
            return score.factor * LOG2E;
        } else {
            return LOG2E;
        }
    }

    // Whether all of a tile's scores count.
    template <int KEYS, bool CAUSAL>
    __device__ __forceinline__ bool whole(int tile) const {
        const int end = (tile + 1) * KEYS;
        return end <= keys.lines && first + ROWS <= queries.lines && !(CAUSAL && end > first + (threadIdx.x >> 7) * 64 + 1);
    }

    // Replace products of a tile by weights; returns what is to be multiplied with sums of earlier weights.
    template <int KEYS, bool CAUSAL>
    __device__ __forceinline__ float2 weigh(Weights& softmax, float (&scores)[KEYS / 2], int tile,
            Numbers<KEYS / 2, Score>& numbers) const {
        auto of = [&](int row, int column, float product) {
            if constexpr (blocks::SAME<Score, Multiple>) {
                return product;
            } else {
                return score(row, column, product);
            }
        };
        if (!whole<KEYS, CAUSAL>(tile) || !numbers.there()) {
            #pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int row = first + blocks::row_of(i), column = tile * KEYS + blocks::column_of(i);
                const bool counts = row < queries.lines && column < keys.lines && (!CAUSAL || column <= row);
                scores[i] = counts ? of(row, column, scores[i]) : Weights::hidden();
            }
        } else {
            numbers.arrange();
            #pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int row = first + blocks::row_of(i), column = tile * KEYS + blocks::column_of(i);
                if constexpr (!blocks::SAME<Score, Multiple>) {
                    scores[i] = numbers.score(score, row, column, scores[i], i);
                }
            }
        }
        return softmax.weigh(scores, 0.0f, unit());
    }

    template <bool CAUSAL>
    __device__ __forceinline__ void compute_exactly() const {
        auto put = [to = to, index = index](int row, int column, float x) { to[index(row, column)] = T(x); };
        attend_exactly<CAUSAL>(rows(queries), rows(keys), rows(values), first, score, put);
    }

    static __device__ __forceinline__ Rows<T> rows(const Matrix& of) { return {of.data, of.lines, of.terms, of.stride}; }
};

template <class Matrix, class Score, class T, class Index>
__device__ __forceinline__ Part<Matrix, Score, T, Index> part(const Matrix& queries, const Matrix& keys, const Matrix& values,
        int first, Score score, T* to, Index index) {
    return {queries, keys, values, first, score, to, index};
}

template <int COUNT>
__device__ __forceinline__ void scale(float (&sum)[COUNT], float2 shares) {
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        sum[i] *= i & 2 ? shares.y : shares.x;
    }
}

template <class T, int COUNT>
__device__ __forceinline__ void pack(unsigned (&weights)[COUNT], const float (&scores)[2 * COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        weights[i] = packed(T(), scores[2 * i], scores[2 * i + 1]);
    }
}

template <class T, class Part, int COUNT>
__device__ __forceinline__ void end(const typename Part::Weights& softmax, float (&sum)[COUNT], const Part& of, int column) {
    scale(sum, make_float2(1.0f / softmax.total[0], 1.0f / softmax.total[1]));
    blocks::store(of.to, sum, blocks::Tile{of.first, column}, of.queries.lines, of.values.terms,
        [](int, int, float x) { return T(x); }, of.index);
}

// The part that a cluster of SPLITS blocks computes in a turn. They take them forwards and backwards by turns, so that each has as much
// to do where later ones take less time.
template <int SPLITS>
__device__ __forceinline__ int nth_part(int turn) {
    const int count = gridDim.x / SPLITS, own = blockIdx.x / SPLITS;
    return turn * count + (turn & 1 ? count - 1 - own : own);
}

#if BLOCKS_WGMMA
// Combine what the SPLITS blocks of a cluster found of some keys each; a block gets the sums of HEAD / SPLITS columns.
template <int HEAD, int SPLITS>
__device__ __forceinline__ void combine(float (&slice)[HEAD / 2 / SPLITS], const float (&sum)[HEAD / 2], Softmax& softmax,
        float unit, unsigned memory) {
    constexpr int COUNT = HEAD / 2 / SPLITS, APART = THREADS * 16, OF_BLOCK = (COUNT / 4 + 1) * APART;
    const unsigned own = memory + threadIdx.x * 16;
    blocks::cluster_barrier();
    #pragma unroll
    for (int part = 0; part < SPLITS; ++part) {
        const unsigned to = blocks::address_at(own + blockIdx.x % SPLITS * OF_BLOCK, part);
        blocks::store_four(to, softmax.top[0], softmax.top[1], softmax.total[0], softmax.total[1]);
        #pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float* from = sum + part * COUNT + i;
            blocks::store_four(to + (i / 4 + 1) * APART, from[0], from[1], from[2], from[3]);
        }
    }
    blocks::cluster_barrier();
    float2 shares[SPLITS];
    float top[2] = {-CUDART_INF_F, -CUDART_INF_F}, total[2] = {0.0f, 0.0f};
    #pragma unroll
    for (int part = 0; part < SPLITS; ++part) {
        const float4 found = blocks::load_four(own + part * OF_BLOCK);
        top[0] = fmaxf(top[0], found.x), top[1] = fmaxf(top[1], found.y);
    }
    #pragma unroll
    for (int part = 0; part < SPLITS; ++part) {
        const float4 found = blocks::load_four(own + part * OF_BLOCK);
        // Blocks without keys have -infinity, and so have rows whose keys are all hidden.
        shares[part].x = found.x == -CUDART_INF_F ? 0.0f : exp2f((found.x - top[0]) * unit);
        shares[part].y = found.y == -CUDART_INF_F ? 0.0f : exp2f((found.y - top[1]) * unit);
        total[0] += found.z * shares[part].x, total[1] += found.w * shares[part].y;
    }
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        slice[i] = 0.0f;
    }
    #pragma unroll
    for (int part = 0; part < SPLITS; ++part) {
        #pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 found = blocks::load_four(own + part * OF_BLOCK + (i / 4 + 1) * APART);
            slice[i] += found.x * shares[part].x, slice[i + 1] += found.y * shares[part].x;
            slice[i + 2] += found.z * shares[part].y, slice[i + 3] += found.w * shares[part].y;
        }
    }
    softmax.total[0] = total[0], softmax.total[1] = total[1];
}
#endif

// Parts 0 to `count` of attention, which part_of(number) gives, by blocks of THREADS + 128 threads. Where CAUSAL, keys behind a query
// don't count. `shared` has (ROWS + 4 * KEYS) * WIDTH * 2 + 2048 bytes, where WIDTH is HEAD rounded up to a multiple of 64. The blocks of a
// cluster take one of SPLITS of a part's keys each.
template <int HEAD, int KEYS, bool CAUSAL, class T, int SPLITS = 1, class PartOf>
__device__ __forceinline__ void attend(unsigned char* shared, int count, PartOf part_of) {
    constexpr int WIDTH = (HEAD + 63) / 64 * 64;
    constexpr unsigned STAGE = KEYS * WIDTH * 2;
    const unsigned own_queries = aligned(shared), own_keys = own_queries + ROWS * WIDTH * 2, own_values = own_keys + 2 * STAGE;
    float sum[HEAD / 2], scores[KEYS / 2];
    unsigned weights[KEYS / 4];
    Numbers<KEYS / 2, decltype(part_of(0).score)> numbers;
#if BLOCKS_WGMMA
    const unsigned barriers = own_values + 2 * STAGE;
    Pipe<1> of_queries{own_queries, barriers, ROWS * WIDTH * 2};
    Pipe<2> of_keys{own_keys, barriers + 16, STAGE}, of_values{own_values, barriers + 48, STAGE};
    if (threadIdx.x == 0) {
        of_queries.init(THREADS / 32);
        of_keys.init(THREADS / 32);
        of_values.init(THREADS / 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int group = __shfl_sync(0xffffffff, threadIdx.x >> 7, 0);
    if (group == THREADS / 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        #pragma unroll 1
        for (int turn = 0; nth_part<SPLITS>(turn) < count; ++turn) {
            const auto of = part_of(nth_part<SPLITS>(turn));
            if (!of.template fits<HEAD>()) {
                continue;
            }
            of_queries.template bring<ROWS, WIDTH>(of.queries, of.first);
            const int tiles = of.template tiles<KEYS, CAUSAL>(), each = (tiles + SPLITS - 1) / SPLITS;
            const int first_tile = blockIdx.x % SPLITS * each;
            #pragma unroll 1
            for (int tile = first_tile; tile < min(first_tile + each, tiles); ++tile) {
                of_keys.template bring<KEYS, WIDTH>(of.keys, tile * KEYS);
                of_values.template bring<KEYS, WIDTH>(of.values, tile * KEYS);
            }
            #pragma unroll
            for (int i = 0; SPLITS > 1 && i < (nth_part<SPLITS>(turn + 1) < count ? 3 : 2); ++i) {
                __syncwarp();
                blocks::cluster_barrier();
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (group == 1) {
            give_turn(0);
        }
        #pragma unroll 1
        for (int turn = 0; nth_part<SPLITS>(turn) < count; ++turn) {
            const auto of = part_of(nth_part<SPLITS>(turn));
            if (!of.template fits<HEAD>()) {
                of.template compute_exactly<CAUSAL>();
                continue;
            }
            const int tiles = of.template tiles<KEYS, CAUSAL>(), each = (tiles + SPLITS - 1) / SPLITS;
            const int first_tile = blockIdx.x % SPLITS * each, last_tile = min(first_tile + each, tiles);
            typename decltype(part_of(0))::Weights softmax;
            #pragma unroll
            for (int i = 0; i < HEAD / 2; ++i) {
                sum[i] = 0.0f;
            }
            const unsigned own = of_queries.wait();
            const bool idle = of.first + group * 64 >= of.queries.lines;
            for (int tile = first_tile; idle && tile < last_tile; ++tile) {
                if (tile > first_tile) {
                    wait_for_turn(group);
                    give_turn(1 - group);
                }
                of_keys.wait();
                of_keys.release();
                of_values.wait();
                of_values.release();
            }
            if (!idle && (SPLITS == 1 || first_tile < last_tile)) {
                multiply_keys<HEAD, KEYS, T>(scores, own, of_keys.wait());
                numbers.fetch(of.score, of.first, first_tile * KEYS, of.template whole<KEYS, CAUSAL>(first_tile));
                wait_for<0>(scores);
                of_keys.release();
                of.template weigh<KEYS, CAUSAL>(softmax, scores, first_tile, numbers);
                pack<T>(weights, scores);
            }
            #pragma unroll 1
            for (int tile = first_tile + 1; !idle && tile < last_tile; ++tile) {
                const unsigned next = of_keys.wait();
                wait_for_turn(group);
                multiply_keys<HEAD, KEYS, T>(scores, own, next);
                weigh_values<HEAD, KEYS, T>(sum, weights, of_values.wait());
                give_turn(1 - group);
                numbers.fetch(of.score, of.first, tile * KEYS, of.template whole<KEYS, CAUSAL>(tile));
                wait_for<1>(scores);
                of_keys.release();
                const float2 shares = of.template weigh<KEYS, CAUSAL>(softmax, scores, tile, numbers);
                wait_for<0>(sum);
                of_values.release();
                scale(sum, shares);
                pack<T>(weights, scores);
            }
            of_queries.release();
            if (!idle && (SPLITS == 1 || first_tile < last_tile)) {
                weigh_values<HEAD, KEYS, T>(sum, weights, of_values.wait());
                wait_for<0>(sum);
                of_values.release();
            }
            softmax.finish();
            if constexpr (SPLITS > 1) {
                float slice[HEAD / 2 / SPLITS];
                combine<HEAD, SPLITS>(slice, sum, softmax, of.unit(), own_queries);
                if (nth_part<SPLITS>(turn + 1) < count) {
                    blocks::publish();
                    blocks::cluster_barrier();
                }
                end<T>(softmax, slice, of, blockIdx.x % SPLITS * (HEAD / SPLITS));
            } else {
                end<T>(softmax, sum, of, 0);
            }
        }
    }
#else
    const bool produces = threadIdx.x >= THREADS;
    for (int turn = blockIdx.x % SPLITS == 0 ? 0 : count; nth_part<SPLITS>(turn) < count; ++turn) {
        const auto of = part_of(nth_part<SPLITS>(turn));
        const int tiles = of.template tiles<KEYS, CAUSAL>();
        auto bring = [&](int tile) {
            const unsigned stage = tile % 2 * STAGE;
            for (int i = 0; i < WIDTH / 64 && tile < tiles; ++i) {
                of.keys.template load<KEYS>(own_keys + stage + i * KEYS * 128, tile * KEYS, i);
                of.values.template load<KEYS>(own_values + stage + i * KEYS * 128, tile * KEYS, i);
            }
        };
        __syncthreads();
        if (!of.template fits<HEAD>()) {
            if (!produces) {
                of.template compute_exactly<CAUSAL>();
            }
            continue;
        }
        if (produces) {
            for (int i = 0; i < WIDTH / 64; ++i) {
                of.queries.template load<ROWS>(own_queries + i * ROWS * 128, of.first, i);
            }
            bring(0);
        }
        typename decltype(part_of(0))::Weights softmax;
        #pragma unroll
        for (int i = 0; i < HEAD / 2; ++i) {
            sum[i] = 0.0f;
        }
        for (int tile = 0; tile < tiles; ++tile) {
            __syncthreads();
            if (produces) {
                bring(tile + 1);
            } else {
                multiply_keys<HEAD, KEYS, T>(scores, own_queries, own_keys + tile % 2 * STAGE);
                numbers.fetch(of.score, of.first, tile * KEYS, of.template whole<KEYS, CAUSAL>(tile));
                scale(sum, of.template weigh<KEYS, CAUSAL>(softmax, scores, tile, numbers));
                pack<T>(weights, scores);
                weigh_values<HEAD, KEYS, T>(sum, weights, own_values + tile % 2 * STAGE);
            }
        }
        if (!produces) {
            softmax.finish();
            end<T>(softmax, sum, of, 0);
        }
    }
#endif
}

// ---- Attention in one kernel, for heads of up to HEAD fp32 numbers, which are split into pairs of fp16 ----------------------

#if BLOCKS_WGMMA
template <int HEAD, int KEYS>
__device__ __forceinline__ void multiply_pairs(float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const unsigned long long a = descriptor(queries + (threadIdx.x >> 7) * (64 * 128)), b = descriptor(keys);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        const int in_a = (k >> 1) * (ROWS * 8) + (k & 1) * 2, in_b = (k >> 1) * (KEYS * 8) + (k & 1) * 2;
        wgmma(scores, a + in_a + 4, b + in_b, k > 0);
        wgmma(scores, a + in_a, b + in_b + 4, 1);
        wgmma(scores, a + in_a, b + in_b, 1);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Of 64 columns of values from `column` on.
template <int HEAD, int KEYS>
__device__ __forceinline__ void weigh_pairs(float (&sum)[32], const unsigned (&high)[KEYS / 4], const unsigned (&low)[KEYS / 4],
        unsigned values, int column) {
    const unsigned long long b = descriptor(values + column / 64 * (KEYS * 128));
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        wgmma_of_registers<__half, 1>(sum, low + 4 * k, b + k * 128, k > 0);
        wgmma_of_registers<__half, 1>(sum, high + 4 * k, b + k * 128 + KEYS * HEAD / 8, 1);
        wgmma_of_registers<__half, 1>(sum, high + 4 * k, b + k * 128, 1);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#else
// With 16 lines of B, whose low parts are elsewhere.
template <bool TURNED>
__device__ __forceinline__ void add_pairs(float* sum, const unsigned* high, const unsigned* low, unsigned from, unsigned from_low) {
    unsigned high_b[4], low_b[4];
    blocks::load_fragments<TURNED>(high_b, from);
    blocks::load_fragments<TURNED>(low_b, from_low);
    #pragma unroll
    for (int part = 0; part < 2; ++part) {
        blocks::mma(sum + 4 * part, low, high_b[2 * part], high_b[2 * part + 1]);
        blocks::mma(sum + 4 * part, high, low_b[2 * part], low_b[2 * part + 1]);
        blocks::mma(sum + 4 * part, high, high_b[2 * part], high_b[2 * part + 1]);
    }
}

template <int HEAD, int KEYS>
__device__ __forceinline__ void multiply_pairs(float (&scores)[KEYS / 2], unsigned queries, unsigned keys) {
    const int line = (threadIdx.x >> 5) * 16 + (threadIdx.x >> 3 & 1) * 8, second = threadIdx.x >> 4 & 1;
    #pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
        scores[i] = 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        unsigned high[4], low[4];
        const unsigned from = blocks::fragment(queries + (k >> 1) * (ROWS * 128), line, (k & 1) * 2 + second);
        blocks::load_fragments(high, from);
        blocks::load_fragments(low, from ^ 64);
        #pragma unroll
        for (int n = 0; n < KEYS; n += 16) {
            const unsigned of_keys = keys + (k >> 1) * (KEYS * 128);
            const unsigned from = blocks::fragment(of_keys, n + second * 8, (k & 1) * 2 + (threadIdx.x >> 3 & 1));
            add_pairs<false>(scores + n / 2, high, low, from, from ^ 64);
        }
    }
}

template <int HEAD, int KEYS>
__device__ __forceinline__ void weigh_pairs(float (&sum)[32], const unsigned (&high)[KEYS / 4], const unsigned (&low)[KEYS / 4],
        unsigned values, int column) {
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        sum[i] = 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        #pragma unroll
        for (int n = 0; n < 64; n += 16) {
            const unsigned block = values + column / 64 * (KEYS * 128);
            const unsigned from = blocks::fragment(block, k * 16 + (threadIdx.x >> 3 & 1) * 8, n / 8 + (threadIdx.x >> 4 & 1));
            add_pairs<true>(sum + n / 2, high + 4 * k, low + 4 * k, from, from + KEYS * HEAD * 2);
        }
    }
}
#endif

__device__ __forceinline__ float4 load_four(const Rows<float>& from, int line, int term) {
    return load_four(from.data + line * from.stride + term, line < from.lines && term < from.terms);
}

// LINES rows of up to HEAD numbers on their way to shared memory, where steps of 32 numbers of all lines follow each other.
template <int LINES, int HEAD>
struct PairsByRow {
    static constexpr int COUNT = LINES * HEAD / 4 / THREADS;
    float4 next[COUNT];

    static __device__ __forceinline__ int line(int i) { return ((threadIdx.x >> 3) + i * 32) % LINES; }
    static __device__ __forceinline__ int step(int i) { return ((threadIdx.x >> 3) + i * 32) / LINES; }

    __device__ __forceinline__ void fetch(const Rows<float>& from, int first) {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            next[i] = load_four(from, first + line(i), step(i) * STEP + (threadIdx.x & 7) * 4);
        }
    }

    __device__ __forceinline__ void keep(unsigned to, float& most) const {
        const int quad = threadIdx.x & 7;
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            most = largest(most, next[i]);
            const unsigned place = to + step(i) * (LINES * 128) + blocks::swizzled(line(i), quad >> 1) + (quad & 1) * 8;
            store_split(place, times(next[i], SCALE), place ^ 64);
        }
    }
};

// LINES rows of up to HEAD numbers: in shared memory, blocks of 64 numbers have 128 bytes of each row, high parts of all blocks and
// then low ones.
template <int LINES, int HEAD>
struct PairsByColumn {
    static constexpr int COUNT = LINES * HEAD / 4 / THREADS;
    float4 next[COUNT];

    static __device__ __forceinline__ int column() { return threadIdx.x * 4 % HEAD; }
    static __device__ __forceinline__ int line(int i) { return threadIdx.x * 4 / HEAD + i * (THREADS * 4 / HEAD); }

    __device__ __forceinline__ void fetch(const Rows<float>& from, int first) {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            next[i] = load_four(from, first + line(i), column());
        }
    }

    __device__ __forceinline__ void keep(unsigned to, float& most) const {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            most = largest(most, next[i]);
            const unsigned block = to + column() / 64 * (LINES * 128);
            const unsigned place = block + blocks::swizzled(line(i), column() % 64 / 8) + (column() & 4) * 2;
            store_split(place, times(next[i], SCALE), place + LINES * HEAD * 2);
        }
    }
};

// A part of attention of fp32 numbers, of `count` which part_of(number) gives, by as many blocks of THREADS threads. `shared` has
// (ROWS + 4 * KEYS) * HEAD * 4 + 1024 bytes.
template <int HEAD, int KEYS, bool CAUSAL, class PartOf>
__device__ __forceinline__ void attend_pairs(unsigned char* shared, int, PartOf part_of) {
    constexpr unsigned STAGE = KEYS * HEAD * 4;
    const unsigned own_queries = aligned(shared), own_keys = own_queries + ROWS * HEAD * 4, own_values = own_keys + 2 * STAGE;
    const auto of = part_of(blockIdx.x);
    using Weights = typename decltype(part_of(0))::Weights;
    const Rows<float>&queries = of.queries, &keys = of.keys, &values = of.values;
    const int first = of.first, tiles = of.template tiles<KEYS, CAUSAL>();
    const bool whole = queries.vector && keys.vector && values.vector && queries.terms % 4 == 0 && values.terms % 4 == 0;
    const bool possible = whole && queries.terms <= HEAD && values.terms <= HEAD;
    float most = 0.0f, most_value = 0.0f, sum[HEAD / 2];
    Weights softmax;
    if (possible) {
        #pragma unroll
        for (int i = 0; i < HEAD / 2; ++i) {
            sum[i] = 0.0f;
        }
        PairsByRow<KEYS, HEAD> next_keys;
        PairsByColumn<KEYS, HEAD> next_values;
        auto keep = [&](int tile) {
            if (tile < tiles) {
                next_keys.keep(own_keys + tile % 2 * STAGE, most);
                next_values.keep(own_values + tile % 2 * STAGE, most_value);
            }
            if (tile + 1 < tiles) {
                next_keys.fetch(keys, (tile + 1) * KEYS);
                next_values.fetch(values, (tile + 1) * KEYS);
            }
        };
        {
            PairsByRow<ROWS, HEAD> own;
            own.fetch(queries, first);
            own.keep(own_queries, most);
        }
        next_keys.fetch(keys, 0);
        next_values.fetch(values, 0);
        keep(0);
        #pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            blocks::publish();
            // The other keys and values are no longer read by anyone.
            __syncthreads();
            float scores[KEYS / 2];
            multiply_pairs<HEAD, KEYS>(scores, own_queries, own_keys + tile % 2 * STAGE);
            keep(tile + 1);
            wait_for<0>(scores);
            #pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int row = first + blocks::row_of(i), column = tile * KEYS + blocks::column_of(i);
                const float product = scores[i] * (1.0f / (SCALE * SCALE));
                // Of the last ones beyond the edges, so that what it loads is loaded at once.
                const float found = of.score(min(row, queries.lines - 1), min(column, keys.lines - 1), product);
                const bool counts = row < queries.lines && column < keys.lines && (!CAUSAL || column <= row);
                scores[i] = counts ? found : Weights::hidden();
            }
            const float2 shares = softmax.weigh(scores, 15.0f);
            unsigned high[KEYS / 4], low[KEYS / 4];
            #pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                split(scores[2 * i], scores[2 * i + 1], high[i], low[i]);
            }
            #pragma unroll
            for (int c = 0; c < HEAD / 64; ++c) {
                float part[32];
                weigh_pairs<HEAD, KEYS>(part, high, low, own_values + tile % 2 * STAGE, c * 64);
                wait_for<0>(part);
                #pragma unroll
                for (int i = 0; i < 32; ++i) {
                    sum[c * 32 + i] = fmaf(sum[c * 32 + i], i & 2 ? shares.y : shares.x, part[i]);
                }
            }
        }
        softmax.finish();
    }
    const bool some = __syncthreads_or(most_value > 0.0f), enough = __syncthreads_or(most_value >= LEAST);
    if (__syncthreads_or(!possible || !softmax.fits() || most > LARGEST || most_value > LARGEST) || (some && !enough)) {
        of.template compute_exactly<CAUSAL>();
    } else {
        scale(sum, make_float2(1.0f / SCALE, 1.0f / SCALE));
        end<float>(softmax, sum, of, 0);
    }
}

// ---- Attention in two kernels, for heads of fp32 numbers that are too wide to keep the sums of a row on chip ----------------
// Each kernel is a product, of which a block computes tiles of ROWS x N: one warp group loads operands and splits them into pairs on
// their way to shared memory, and two multiply. Blocks of a cluster have tiles below each other, and each brings its share of the
// columns to both: what L2 can deliver is the bound.

constexpr int STAGES = 4, BOUND = 2, SOME = 4, ENOUGH = 8;

// Stages of operands in shared memory, with a barrier for those that are full and one for those that are empty. With the last stage of a
// tile go words that tell of its numbers.
template <int N, int CLUSTER>
struct Ring {
    static constexpr int STAGE = (ROWS + N) * 128;
    const unsigned memory, rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0;
    unsigned there = 0, parity = 0;
    int stage = 0;

    __device__ __forceinline__ explicit Ring(const unsigned char* shared) : memory(aligned(shared)) {
#if BLOCKS_WGMMA
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                blocks::init_barrier(full() + 16 * i, blocks::PRODUCERS / 32);
                blocks::init_barrier(full() + 16 * i + 8, THREADS / 32 * CLUSTER);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        if constexpr (CLUSTER > 1) {
            there = blocks::address_at(memory, rank ^ 1) - memory;
            blocks::cluster_barrier();
        }
#endif
        __syncthreads();
    }

    __device__ __forceinline__ unsigned own() const { return memory + stage * STAGE; }
    __device__ __forceinline__ unsigned full() const { return memory + STAGES * STAGE + 256 + stage * 16; }
    __device__ __forceinline__ unsigned word(int number) const { return memory + STAGES * STAGE + stage * 32 + number * 4; }

    __device__ __forceinline__ void next() {
        parity ^= stage == STAGES - 1;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

    // Store at an address, and if BOTH at the same one in the other block, whose barrier of the stage waits for it.
    template <bool BOTH>
    __device__ __forceinline__ void store(unsigned to, unsigned x, unsigned y) const {
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
#if BLOCKS_WGMMA
        if constexpr (BOTH) {
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                         ::"r"(to + there), "r"(x), "r"(y), "r"(full() + there) : "memory");
        }
#endif
    }

    template <bool BOTH>
    __device__ __forceinline__ void store_pairs(unsigned to, unsigned to_low, float4 v) const {
        unsigned high[2], low[2];
        split(v.x, v.y, high[0], low[0]);
        split(v.z, v.w, high[1], low[1]);
        store<BOTH>(to, high[0], high[1]);
        store<BOTH>(to_low, low[0], low[1]);
    }

    // What all warps say of a tile's numbers, with its last step.
    __device__ __forceinline__ void tell(unsigned found) const {
        const unsigned all = (__any_sync(0xffffffff, found & BOUND) ? BOUND : 0) | (__any_sync(0xffffffff, found & SOME) ? SOME : 0)
            | (__any_sync(0xffffffff, found & ENOUGH) ? ENOUGH : 0);
        if (threadIdx.x % 32 == 0) {
            const unsigned to = word(rank * 4 + threadIdx.x / 32 % 4);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(all) : "memory");
#if BLOCKS_WGMMA
            if constexpr (CLUSTER > 1) {
                asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                             ::"r"(to + there), "r"(all), "r"(full() + there) : "memory");
            }
#endif
        }
    }

    __device__ __forceinline__ unsigned told() const {
        unsigned all = 0;
        #pragma unroll
        for (int i = 0; i < 4 * (BLOCKS_WGMMA ? CLUSTER : 1); ++i) {
            unsigned found;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(found) : "r"(word(BLOCKS_WGMMA ? i : rank * 4 + i)) : "memory");
            all |= found;
        }
        return all;
    }
};

// Four neighbours, or what was there.
__device__ __forceinline__ void load_if(float4& v, const float* at, bool some) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w) : "l"(at), "r"((int)some));
}

// LINES lines of a step whose terms are contiguous: a thread brings four terms of every 16th line. Steps are fetched in their order, and
// so are their parts.
template <int LINES, bool BOTH>
struct ByTerm {
    static constexpr int COUNT = LINES / 16, BYTES = 0;
    const int quad = threadIdx.x & 7;
    // Of eight lines, such that half a warp writes lines r and r + 4, which lie in different banks.
    const int line = (threadIdx.x >> 3 & 8) | ((threadIdx.x >> 3 & 7) >> 1) | ((threadIdx.x >> 3 & 1) << 2);
    const int left, terms;
    const long long apart;
    const float *at, *next_at;
    float4 next[COUNT];
    float most = 0.0f;

    __device__ __forceinline__ ByTerm(const blocks::ByTerm& from, int first)
        : left(from.lines - first - line), terms(from.terms), apart(16 * from.stride),
          at(from.data + (first + line) * from.stride + quad * 4), next_at(at) {}

    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int i, int step, bool some) {
        next_at = i == 0 ? at + step * STEP : next_at + apart;
        next[i] = WHOLE ? next[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        load_if(next[i], next_at, some && (WHOLE || (left > 16 * i && step * STEP + quad * 4 < terms)));
    }

    template <class Ring>
    __device__ __forceinline__ void keep(const Ring& ring, unsigned to, int i) {
        most = largest(most, next[i]);
        to += blocks::swizzled(line + 16 * i, quad >> 1) + (quad & 1) * 8;
        ring.template store_pairs<BOTH>(to, to ^ 64, times(next[i], SCALE));
    }
};

// Weights in memory as the tensor cores read them, in blocks of ROWS rows and a step of terms. Behind them are two numbers for each row of
// a tile. Where they are written, `data` isn't constant.
struct PackedWeights {
    const float* data;
    int lines, terms;

    __device__ __forceinline__ int steps() const { return (terms + STEP - 1) / STEP; }
    // Of whole blocks: rows beyond the last one have no weights.
    __device__ __forceinline__ int rows() const { return (lines + ROWS - 1) / ROWS * ROWS; }

    __device__ __forceinline__ unsigned char* step(int row, int step) const {
        return reinterpret_cast<unsigned char*>(const_cast<float*>(data)) + ((long long)(min(row, lines - 1) / ROWS) * steps() + step) * (ROWS * 128);
    }

    // A tile's largest score, in units of log 2, and the sum of its weights.
    __device__ __forceinline__ float2& of_tile(int row, int tile) const {
        float* from = const_cast<float*>(data) + (long long)rows() * (steps() * STEP + 2 * tile);
        return reinterpret_cast<float2*>(from)[min(row, rows() - 1)];
    }

    // A step's terms are in the order in which threads have sums: the eight of one are neighbours.
    static __device__ __forceinline__ int place_of(int term) { return (term & 6) << 2 | (term & 24) >> 2 | (term & 1); }

    // The high part of a weight; the low one is 32 numbers further or before.
    __device__ __forceinline__ __half* element(int row, int term, bool low) const {
        const int place = place_of(term % STEP), at = blocks::swizzled(row % ROWS, place / 8) + place % 8 * 2;
        return reinterpret_cast<__half*>(step(row, term / STEP) + (low ? at ^ 64 : at));
    }

    __device__ __forceinline__ void put(int row, int term, float weight) const {
        const __half high = __float2half_rn(weight * WEIGHT_SCALE);
        *element(row, term, false) = high;
        *element(row, term, true) = __float2half_rn(weight * WEIGHT_SCALE - __half2float(high));
    }

    __device__ __forceinline__ float get(int row, int term) const {
        return (__half2float(*element(row, term, false)) + __half2float(*element(row, term, true))) * (1.0f / WEIGHT_SCALE);
    }
};

// A step of such weights of ROWS rows.
struct Copied {
    static constexpr int COUNT = 1, BYTES = ROWS * 128;
    const PackedWeights& of;
    const int row;
    const unsigned char* next = nullptr;
    float most = 0.0f;

    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int, int step, bool) { next = of.step(row, step); }

    template <class Ring>
    __device__ __forceinline__ void keep(const Ring& ring, unsigned to, int) const {
#if BLOCKS_WGMMA
        if (threadIdx.x == THREADS) {
            blocks::bulk_copy(to, next, BYTES, ring.full(), 0);
        }
#else
        for (int i = threadIdx.x % blocks::PRODUCERS * 16; i < BYTES; i += blocks::PRODUCERS * 16) {
            const float4 v = *reinterpret_cast<const float4*>(next + i);
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
        }
#endif
    }
};

// LINES lines, half of a stage's if BOTH, that are contiguous for each term, and stay so: blocks of 64 lines have 32 terms of 128 bytes,
// in the order of weights, high parts of all blocks and then low ones. A thread brings four lines of every few terms.
template <int LINES, bool BOTH>
struct ByLine {
    static constexpr int APART = blocks::PRODUCERS * 4 / LINES, COUNT = STEP / APART;
    const int line = threadIdx.x * 4 % LINES, term = threadIdx.x % blocks::PRODUCERS * 4 / LINES;
    const int terms;
    const long long apart;
    const float* at;
    float4 next[COUNT];
    float most = 0.0f;

    __device__ __forceinline__ ByLine(const blocks::ByLine& from, int first)
        : terms(first + line < from.lines ? from.terms : 0), apart(APART * from.stride),
          at(from.data + term * from.stride + first + line) {}

    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int i, int step, bool some) {
        next[i] = WHOLE ? next[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        load_if(next[i], at, some && (WHOLE || step * STEP + term + i * APART < terms));
        at += apart;
    }

    template <class Ring>
    __device__ __forceinline__ void keep(const Ring& ring, unsigned to, int i) {
        most = largest(most, next[i]);
        to += line / 64 * (STEP * 128) + blocks::swizzled(PackedWeights::place_of(term + i * APART), line % 64 / 8) + (line & 4) * 2;
        ring.template store_pairs<BOTH>(to, to + LINES * (BOTH ? 128 : 64), times(next[i], SCALE));
    }
};

template <bool WHOLE, class A, class B>
__device__ __forceinline__ void fetch_all(A& a, B& b, int step) {
    #pragma unroll
    for (int i = 0; i < A::COUNT; ++i) {
        a.template fetch<WHOLE>(i, step, true);
    }
    #pragma unroll
    for (int i = 0; i < B::COUNT; ++i) {
        b.template fetch<WHOLE>(i, step, true);
    }
}

// Bring a step, and fetch what comes after it.
template <bool WHOLE, class Ring, class Operand>
__device__ __forceinline__ void keep_all(const Ring& ring, Operand& from, unsigned to, int step, bool more) {
    #pragma unroll
    for (int i = 0; i < Operand::COUNT; ++i) {
        from.keep(ring, to, i);
        from.template fetch<WHOLE>(i, step + 1, more);
    }
}

#if BLOCKS_WGMMA
template <bool WHOLE, int N, int CLUSTER, class Part, class A, class B>
__device__ __forceinline__ void bring(Ring<N, CLUSTER>& ring, const Part& part, A& a, B& b, unsigned to_b, int steps) {
    if (steps > 0) {
        fetch_all<WHOLE>(a, b, 0);
    }
    #pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool last = step == steps - 1;
        blocks::wait_for(ring.full() + 8, ring.parity ^ 1);
        if ((CLUSTER > 1 || A::BYTES > 0) && threadIdx.x == THREADS) {
            blocks::expect(ring.full(), A::BYTES + (CLUSTER > 1 ? N * 64 + (last ? 16 : 0) : 0));
        }
        keep_all<WHOLE>(ring, a, ring.own(), step, !last);
        keep_all<WHOLE>(ring, b, ring.own() + to_b, step, !last);
        if (last) {
            ring.tell(found_of(part, a, b));
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            blocks::arrive(ring.full());
        }
        ring.next();
    }
}

template <int N, int CLUSTER>
__device__ __forceinline__ void release(const Ring<N, CLUSTER>& ring, unsigned barrier) {
    if (threadIdx.x % 32 < CLUSTER) {
        if constexpr (CLUSTER == 1) {
            blocks::arrive(barrier);
        } else {
            blocks::arrive_at(barrier, threadIdx.x % 32);
        }
    }
}

// Returns what was found of the numbers.
template <bool TURNED, int N, int CLUSTER, class Units>
__device__ __forceinline__ unsigned multiply(float (&sum)[N / 2], Ring<N, CLUSTER>& ring, int steps, Units& units) {
    unsigned before = 0, found = 0;
    #pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        units.begin(sum, step);
        blocks::wait_for(ring.full(), ring.parity);
        // What others stored comes before what the tensor cores read.
        blocks::publish();
        blocks::products<ROWS, N, float, float, false, TURNED>(sum, ring.own(), step > 0);
        blocks::wait<1>(sum);
        if (step > 0) {
            release(ring, before);
        }
        before = ring.full() + 8;
        found = step == steps - 1 ? ring.told() : 0;
        ring.next();
    }
    blocks::wait<0>(sum);
    __syncwarp();
    release(ring, before);
    return found;
}
#endif

// What a thread found of a tile's numbers.
template <class Part, class A, class B>
__device__ __forceinline__ unsigned found_of(const Part& part, const A& a, const B& b) {
    return (!part.possible() || a.most > LARGEST || b.most > LARGEST ? BOUND : 0) | (b.most > 0.0f ? SOME : 0)
        | (b.most >= LEAST ? ENOUGH : 0);
}

template <int COUNT, class Part>
__device__ __noinline__ void finish_exactly(Part part, blocks::Tile tile) {
    part.template finish_exactly<COUNT>(tile);
}

template <class Part, int COUNT>
__device__ __forceinline__ void finish_tile(const Part& part, float (&sum)[COUNT], const blocks::Tile& tile,
        const typename Part::Units& units, unsigned found) {
    if ((found & BOUND) || (found & (SOME | ENOUGH)) == SOME) {
        finish_exactly<COUNT>(part, tile);
    } else {
        part.finish(sum, tile, units);
    }
}

// The tiles of a product, by THREADS + 128 threads: part_of(tile) is what a block computes of each. `shared` has
// STAGES * (ROWS + N) * 128 + 1536 bytes.
template <int N, int CLUSTER, class Tiling, class PartOf>
__device__ __forceinline__ void compute_tiles(unsigned char* shared, const Tiling& tiling, PartOf part_of) {
    static_assert(CLUSTER == 1 || (CLUSTER == 2 && N >= 128), "Two blocks share 128 columns or more");
    using Part = decltype(part_of(blocks::Tile()));
    Ring<N, CLUSTER> ring(shared);
    const int group = __shfl_sync(0xffffffff, threadIdx.x >> 7, 0);
    const int first = blockIdx.x / CLUSTER, apart = gridDim.x / CLUSTER;
    auto own = [&](blocks::Tile tile) {
        tile.row += ring.rank * ROWS;
        return tile;
    };
#if BLOCKS_WGMMA
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
        const int share = ring.rank * (N / CLUSTER);
        const unsigned to_b = ROWS * 128 + (Part::TURNED ? share / 64 * (STEP * 128) : share * 128);
        #pragma unroll 1
        for (int number = first; number < tiling.count(); number += apart) {
            const blocks::Tile all = tiling.tile(number), tile = own(all);
            const Part part = part_of(all);
            const int steps = part.steps(all, all.row + ROWS * CLUSTER);
            auto a = part.a(tile);
            auto b = part.template b<N / CLUSTER, (CLUSTER > 1)>(tile.column + share);
            if (part.template whole<N>(tile)) {
                bring<true>(ring, part, a, b, to_b, steps);
            } else {
                bring<false>(ring, part, a, b, to_b, steps);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
        #pragma unroll 1
        for (int number = first; number < tiling.count(); number += apart) {
            const blocks::Tile all = tiling.tile(number), tile = own(all);
            const Part part = part_of(all);
            const int steps = part.steps(all, all.row + ROWS * CLUSTER);
            if (steps > 0) {
                float sum[N / 2];
                typename Part::Units units(part, tile, steps);
                const unsigned found = multiply<Part::TURNED>(sum, ring, steps, units);
                finish_tile(part, sum, tile, units, found);
            }
        }
    }
    if constexpr (CLUSTER > 1) {
        // The other block may still arrive here.
        __syncwarp();
        blocks::cluster_barrier();
    }
#else
    for (int number = first; number < tiling.count(); number += apart) {
        const blocks::Tile all = tiling.tile(number), tile = own(all);
        const Part part = part_of(all);
        const int steps = part.steps(all, all.row + ROWS * CLUSTER);
        float sum[N / 2];
        typename Part::Units units(part, tile, steps);
        auto a = part.a(tile);
        auto b = part.template b<N, false>(tile.column);
        fetch_all<false>(a, b, 0);
        for (int step = 0; step < steps; ++step) {
            __syncthreads();
            if (group == 2) {
                keep_all<false>(ring, a, ring.own(), step, step + 1 < steps);
                keep_all<false>(ring, b, ring.own() + ROWS * 128, step, step + 1 < steps);
                ring.tell(found_of(part, a, b));
            }
            __syncthreads();
            if (group < 2) {
                units.begin(sum, step);
                blocks::products<ROWS, N, float, float, false, Part::TURNED>(sum, ring.own(), step > 0);
            }
        }
        if (group < 2 && steps > 0) {
            finish_tile(part, sum, tile, units, ring.told());
        }
    }
#endif
}

// Weights 2^(score - largest score of the tile of KEYS), where score(row, column, product) is what softmax is taken of, and 0 from the last
// key up to a multiple of 32; with each tile's largest score and sum.
template <int KEYS, bool CAUSAL, class Score>
struct Scores {
    static constexpr bool TURNED = false;
    struct Units {
        __device__ __forceinline__ Units(const Scores&, const blocks::Tile&, int) {}
        template <int COUNT>
        __device__ __forceinline__ void begin(float (&)[COUNT], int) const {}
    };
    blocks::ByTerm queries, keys;
    PackedWeights to;
    Score score;

    __device__ __forceinline__ bool possible() const { return queries.vector && keys.vector && queries.terms % 4 == 0; }

    // Of queries before `last`; none where no key of the tile counts for them.
    __device__ __forceinline__ int steps(const blocks::Tile& tile, int last) const {
        return CAUSAL && tile.column >= last ? 0 : (queries.terms + STEP - 1) / STEP;
    }

    template <int N>
    __device__ __forceinline__ bool whole(const blocks::Tile& tile) const {
        return possible() && tile.row + ROWS <= queries.lines && tile.column + N <= keys.lines && queries.terms % STEP == 0;
    }

    __device__ __forceinline__ blocks::ByTerm limited(const blocks::ByTerm& of) const {
        return {of.data, possible() ? of.lines : 0, of.terms, of.stride};
    }

    __device__ __forceinline__ auto a(const blocks::Tile& tile) const {
        return ByTerm<ROWS, false>(limited(queries), tile.row);
    }

    template <int LINES, bool BOTH>
    __device__ __forceinline__ auto b(int first) const { return ByTerm<LINES, BOTH>(limited(keys), first); }

    // What softmax is taken of, in units of log 2.
    __device__ __forceinline__ float exponent(int row, int column, float product) const {
        // Of the last ones beyond the edges, so that what it loads is loaded at once.
        const float found = score(min(row, queries.lines - 1), min(column, keys.lines - 1), product);
        return row < queries.lines && column < keys.lines && (!CAUSAL || column <= row) ? found * LOG2E : -CUDART_INF_F;
    }

    static __device__ __forceinline__ float largest_of_row(float top) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        return fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
    }

    __device__ __forceinline__ void store_sum(int row, int column, float top, float total) const {
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        if ((threadIdx.x & 3) == 0 && row < to.rows()) {
            to.of_tile(row, column / KEYS) = make_float2(top, total);
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void finish(float (&sum)[COUNT], const blocks::Tile& tile, Units) const {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile.row + blocks::row_of(2 * half);
            float top = -CUDART_INF_F, total = 0.0f;
            #pragma unroll
            for (int i = 2 * half; i < COUNT; i += 4) {
                #pragma unroll
                for (int j = i; j < i + 2; ++j) {
                    sum[j] = exponent(row, tile.column + blocks::column_of(j), sum[j] * (1.0f / (SCALE * SCALE)));
                    top = fmaxf(top, sum[j]);
                }
            }
            top = largest_of_row(top);
            const float origin = top == -CUDART_INF_F ? 0.0f : top;
            unsigned char* at = to.step(row, tile.column / STEP) + blocks::swizzled(row % ROWS, threadIdx.x & 3);
            #pragma unroll
            for (int step = 0; step < COUNT / 16; ++step) {
                unsigned high[4], low[4];
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* from = sum + step * 16 + i * 4 + half * 2;
                    const float2 found = make_float2(power_of_two(from[0] - origin), power_of_two(from[1] - origin));
                    total += found.x + found.y;
                    split(found.x * WEIGHT_SCALE, found.y * WEIGHT_SCALE, high[i], low[i]);
                }
                if (row < to.rows() && tile.column + step * STEP < to.terms) {
                    const long long further = step * (ROWS * 128), change = (row & 4) ? -64 : 64;
                    *reinterpret_cast<uint4*>(at + further) = make_uint4(high[0], high[1], high[2], high[3]);
                    *reinterpret_cast<uint4*>(at + further + change) = make_uint4(low[0], low[1], low[2], low[3]);
                }
            }
            store_sum(row, tile.column, top, total);
        }
    }

    // The same in fp32 arithmetic.
    template <int COUNT>
    __device__ __forceinline__ void finish_exactly(const blocks::Tile& tile) const {
        #pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            const int row = tile.row + blocks::row_of(2 * half), end = row < to.rows() ? to.steps() * STEP : 0;
            float top = -CUDART_INF_F, total = 0.0f;
            #pragma unroll 1
            for (int i = 0; i < COUNT; ++i) {
                const int column = tile.column + blocks::column_of((i % (COUNT / 2)) * 2 - i % 2);
                if (column < end) {
                    float product = 0.0f;
                    for (int k = 0; k < queries.terms && row < queries.lines && column < keys.lines; ++k) {
                        product = fmaf(queries.data[row * queries.stride + k], keys.data[column * keys.stride + k], product);
                    }
                    const float found = exponent(row, column, product);
                    if (i < COUNT / 2) {
                        top = fmaxf(top, found);
                    } else {
                        const float weight = power_of_two(found - (top == -CUDART_INF_F ? 0.0f : top));
                        to.put(row, column, weight);
                        total += weight;
                    }
                }
                if (i == COUNT / 2 - 1) {
                    top = largest_of_row(top);
                }
            }
            store_sum(row, tile.column, top, total);
        }
    }
};

template <int KEYS, bool CAUSAL, class Score>
__device__ __forceinline__ Scores<KEYS, CAUSAL, Score> scores(const blocks::ByTerm& queries, const blocks::ByTerm& keys,
        const PackedWeights& to, Score score) {
    return {queries, keys, to, score};
}

// What such weights, in tiles of KEYS, make of `values`; stored at to[index(row, column)].
template <int KEYS, bool CAUSAL, class Index>
struct Values {
    static constexpr bool TURNED = true;
    static constexpr float NONE = -1e30f, MOST = 60.0f;
    PackedWeights weights;
    blocks::ByLine values;
    float* to;
    Index index;

    // What sums of two rows are multiples of: a power of two for the tile whose weights are added, but not much less than for their largest
    // score so far, so that nothing overflows. Next to that a tile's weights are nothing.
    struct Units {
        const PackedWeights& of;
        const int row, last_tile;
        float2 next[2];
        float unit[2] = {NONE, NONE}, top[2] = {NONE, NONE}, total[2] = {0.0f, 0.0f};

        __device__ __forceinline__ Units(const Values& part, const blocks::Tile& tile, int steps)
            : of(part.weights), row(tile.row + blocks::row_of(0)), last_tile((steps - 1) / (KEYS / STEP)) {
            next[0] = of.of_tile(row, 0), next[1] = of.of_tile(row + 8, 0);
        }

        template <int COUNT>
        __device__ __forceinline__ void begin(float (&sum)[COUNT], int step) {
            if (step % (KEYS / STEP) != 0) {
                return;
            }
            float shares[2];
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float found = fmaxf(next[half].x, NONE), most = fmaxf(top[half], found), own = fmaxf(found, most - MOST);
                total[half] = total[half] * power_of_two(top[half] - most) + next[half].y * power_of_two(found - most);
                shares[half] = power_of_two(unit[half] - own);
                unit[half] = own, top[half] = most;
                next[half] = of.of_tile(row + 8 * half, min(step / (KEYS / STEP) + 1, last_tile));
            }
            if (step > 0) {
                wait_for<0>(sum);
                scale(sum, make_float2(shares[0], shares[1]));
            }
        }

        // What makes sums what they are multiples of.
        __device__ __forceinline__ float last(int half) const {
            return power_of_two(unit[half] - top[half]) / total[half] * (1.0f / (SCALE * WEIGHT_SCALE));
        }
    };

    __device__ __forceinline__ bool possible() const { return values.vector && values.lines % 4 == 0; }

    __device__ __forceinline__ int steps(const blocks::Tile&, int last) const {
        return CAUSAL ? min(weights.steps(), last / STEP) : weights.steps();
    }

    template <int N>
    __device__ __forceinline__ bool whole(const blocks::Tile& tile) const {
        return possible() && tile.column + N <= values.lines && values.terms % STEP == 0;
    }

    __device__ __forceinline__ auto a(const blocks::Tile& tile) const { return Copied{weights, tile.row}; }

    template <int LINES, bool BOTH>
    __device__ __forceinline__ auto b(int first) const {
        const blocks::ByLine limited{values.data, possible() ? values.lines : 0, values.terms, values.stride};
        return ByLine<LINES, BOTH>(limited, first);
    }

    template <int COUNT>
    __device__ __forceinline__ void finish(float (&sum)[COUNT], const blocks::Tile& tile, const Units& units) const {
        scale(sum, make_float2(units.last(0), units.last(1)));
        blocks::store(to, sum, tile, weights.lines, values.lines, [](int, int, float x) { return x; }, index);
    }

    // The same in fp32 arithmetic.
    template <int COUNT>
    __device__ __forceinline__ void finish_exactly(const blocks::Tile& tile) const {
        #pragma unroll 1
        for (int i = 0; i < COUNT; ++i) {
            const int row = tile.row + blocks::row_of(i), column = tile.column + blocks::column_of(i);
            if (row < weights.lines && column < values.lines) {
                const int end = CAUSAL ? min(values.terms, row + 1) : values.terms;
                float top = -CUDART_INF_F, total = 0.0f, found = 0.0f;
                for (int k = 0; k < end; k += KEYS) {
                    top = fmaxf(top, weights.of_tile(row, k / KEYS).x);
                }
                for (int k = 0; k < end; ++k) {
                    const float2 of_tile = weights.of_tile(row, k / KEYS);
                    const float share = of_tile.x == -CUDART_INF_F ? 0.0f : power_of_two(of_tile.x - top);
                    total += k % KEYS == 0 ? of_tile.y * share : 0.0f;
                    found = fmaf(weights.get(row, k) * share, values.data[k * values.stride + column], found);
                }
                to[index(row, column)] = found / total;
            }
        }
    }
};

template <int KEYS, bool CAUSAL, class Index>
__device__ __forceinline__ Values<KEYS, CAUSAL, Index> weighed(const PackedWeights& weights, const blocks::ByLine& values, float* to, Index index) {
    return {weights, values, to, index};
}

}  // namespace attention
