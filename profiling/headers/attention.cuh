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

// Steps that memory is asked for in advance, as few blocks wait for it.
constexpr int AHEAD = 4;

__device__ __forceinline__ void prefetch(const float* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Four neighbours, which are either all inside of a matrix or zeros: rows of other lengths are computed in fp32.
__device__ __forceinline__ float4 load_four(const float* at, bool inside) {
    return inside ? *reinterpret_cast<const float4*>(at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

struct Scaled {
    static constexpr bool CHECKED = true;

    __device__ __forceinline__ float4 operator()(float4 v, int, int) const { return times(v, SCALE); }
};

// LINES lines whose terms are contiguous: a thread brings four terms of every 32nd line. `change(four, i, step)` is applied.
template <int LINES, class Change>
struct ByTerm {
    static constexpr bool TURNED = false;
    const blocks::ByTerm& from;
    const int first, quad = threadIdx.x & 7;
    // Of eight lines, such that half a warp writes lines r and r + 4, which lie in different banks.
    const int line = (threadIdx.x >> 3 & ~7) | ((threadIdx.x >> 3 & 7) >> 1) | ((threadIdx.x >> 3 & 1) << 2);
    const float* at = from.data + (first + line) * from.stride + quad * 4;
    const bool whole = first + LINES <= from.lines && from.terms % STEP == 0;
    Change change;
    float4 next[LINES / 32];
    float most = 0.0f;

    __device__ __forceinline__ ByTerm(const blocks::ByTerm& matrix, int line, Change change)
        : from(matrix), first(line), change(change) {}

    // Steps are fetched in their order.
    __device__ __forceinline__ void fetch(int step) {
        if (whole) {
            const float* of_line = at;
            #pragma unroll
            for (int i = 0; i < LINES / 32; ++i, of_line += 32 * from.stride) {
                next[i] = *reinterpret_cast<const float4*>(of_line);
                if (quad == 0 && step + AHEAD < from.terms / STEP) {
                    prefetch(of_line + AHEAD * STEP);
                }
            }
        } else {
            #pragma unroll
            for (int i = 0; i < LINES / 32; ++i) {
                const bool inside = first + line + 32 * i < from.lines && step * STEP + quad * 4 < from.terms;
                next[i] = load_four(at + 32 * i * from.stride, inside);
            }
        }
        at += STEP;
    }

    __device__ __forceinline__ void keep(unsigned stage, int step) {
        #pragma unroll
        for (int i = 0; i < LINES / 32; ++i) {
            most = Change::CHECKED ? largest(most, next[i]) : most;
            const unsigned to = stage + blocks::swizzled(line + 32 * i, quad >> 1) + (quad & 1) * 8;
            store_split(to, change(next[i], i, step), to ^ 64);
        }
    }
};

// LINES lines that are contiguous for each term, and stay so: blocks of 64 lines have 32 terms of 128 bytes, high parts of all blocks
// and then low ones. A thread brings four lines of every few terms.
template <int LINES, class Change>
struct ByLine {
    static constexpr bool TURNED = true;
    static constexpr int APART = THREADS * 4 / LINES;
    const blocks::ByLine& from;
    const int first, line = threadIdx.x * 4 % LINES, term = threadIdx.x * 4 / LINES;
    const float* at = from.data + term * from.stride + first + line;
    const bool whole = first + LINES <= from.lines && from.terms % STEP == 0;
    Change change;
    float4 next[STEP / APART];
    float most = 0.0f;

    __device__ __forceinline__ ByLine(const blocks::ByLine& matrix, int line, Change change)
        : from(matrix), first(line), change(change) {}

    __device__ __forceinline__ void fetch(int step) {
        #pragma unroll
        for (int i = 0; i < STEP / APART; ++i, at += APART * from.stride) {
            if (whole) {
                next[i] = *reinterpret_cast<const float4*>(at);
                if (line % 32 == 0 && step + AHEAD < from.terms / STEP) {
                    prefetch(at + AHEAD * STEP * from.stride);
                }
            } else {
                next[i] = load_four(at, first + line < from.lines && step * STEP + term + i * APART < from.terms);
            }
        }
    }

    __device__ __forceinline__ void keep(unsigned stage, int step) {
        #pragma unroll
        for (int i = 0; i < STEP / APART; ++i) {
            most = largest(most, next[i]);
            const int k = term + i * APART;
            const unsigned to = stage + line / 64 * (STEP * 128) + blocks::swizzled(k, line % 64 / 8) + (line & 4) * 2;
            store_split(to, change(next[i], i, step), to + LINES * 64);
        }
    }
};

// Products of ROWS lines of A and N of B over all steps. `shared` has 3 * (ROWS + N) * 128 bytes, from a multiple of 1024 on.
// Both warp groups split the next step into one of three stages while the tensor cores work on the one before.
template <int N, class A, class B>
__device__ __forceinline__ void multiply(float (&sum)[N / 2], unsigned shared, A& a, B& b, int steps) {
    constexpr int STAGE = (ROWS + N) * 128;
    auto keep = [&](unsigned stage, int step) {
        a.keep(stage, step);
        b.keep(stage + ROWS * 128, step);
        if (step + 1 < steps) {
            a.fetch(step + 1);
            b.fetch(step + 1);
        }
        blocks::publish();
    };
    a.fetch(0);
    b.fetch(0);
    unsigned stage = shared;
    keep(stage, 0);
    __syncthreads();
    #pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        blocks::products<ROWS, N, float, float, false, B::TURNED>(sum, stage, step > 0);
        stage = stage == shared + 2 * STAGE ? shared : stage + STAGE;
        if (step + 1 < steps) {
            // Nobody reads this stage any more: its products were waited for before the last barrier.
            keep(stage, step + 1);
        }
        blocks::wait<1>(sum);
        __syncthreads();
    }
    blocks::wait<0>(sum);
}

// Replace all sums by what `exactly(row, column)` of the tile gives.
template <int COUNT, class Exactly>
__device__ __forceinline__ void replace(float (&sum)[COUNT], Exactly exactly) {
    #pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {
        const float found = exactly(blocks::row_of(i), blocks::column_of(i));
        #pragma unroll
        for (int j = 0; j < COUNT; ++j) {
            sum[j] = j == i ? found : sum[j];
        }
    }
}

__device__ __forceinline__ unsigned aligned(const unsigned char* shared) {
    return ((unsigned)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
}

// ---- Attention in two kernels, for heads that are too wide to keep the sums of a row on chip -------------------------------

// A tile of N columns of weights: to[row * pitch + column] gets 2^(score - largest score of the tile), where score(row, column,
// product) is in units of log 2, and 0 from the last key up to a multiple of 32. Behind them are each tile's largest score and sum.
template <int N, class Score>
__device__ __forceinline__ void store_scores(float* to, unsigned char* shared, const blocks::ByTerm& queries,
        const blocks::ByTerm& keys, blocks::Tile tile, int pitch, Score score) {
    float sum[N / 2];
    const int steps = (queries.terms + STEP - 1) / STEP;
    ByTerm<ROWS, Scaled> a(queries, tile.row, Scaled());
    ByTerm<N, Scaled> b(keys, tile.column, Scaled());
    const bool whole = queries.vector && keys.vector && queries.terms % 4 == 0;
    if (whole) {
        multiply<N>(sum, aligned(shared), a, b, steps);
    }
    float unit = 1.0f / (SCALE * SCALE);
    if (__syncthreads_or(!whole || a.most > LARGEST || b.most > LARGEST)) {
        unit = 1.0f;
        replace(sum, [&](int row, int column) {
            const float* x = queries.data + (tile.row + row) * queries.stride;
            const float* y = keys.data + (tile.column + column) * keys.stride;
            const bool inside = tile.row + row < queries.lines && tile.column + column < keys.lines;
            float found = 0.0f;
            for (int k = 0; k < queries.terms && inside; ++k) {
                found = fmaf(x[k], y[k], found);
            }
            return found;
        });
    }
    const int columns = (keys.lines + STEP - 1) / STEP * STEP;
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = tile.row + blocks::row_of(2 * half);
        float top = -CUDART_INF_F, total = 0.0f;
        #pragma unroll
        for (int i = 2 * half; i < N / 2; i += 4) {
            #pragma unroll
            for (int j = i; j < i + 2; ++j) {
                const int column = tile.column + blocks::column_of(j);
                const bool inside = row < queries.lines && column < keys.lines;
                sum[j] = inside ? score(row, column, sum[j] * unit) * LOG2E : -CUDART_INF_F;
                top = fmaxf(top, sum[j]);
            }
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        const float origin = top == -CUDART_INF_F ? 0.0f : top;
        #pragma unroll
        for (int i = 2 * half; i < N / 2; i += 4) {
            const int column = tile.column + blocks::column_of(i);
            const float2 found = make_float2(exp2f(sum[i] - origin), exp2f(sum[i + 1] - origin));
            total += found.x + found.y;
            if (row < queries.lines && column < columns) {
                *reinterpret_cast<float2*>(to + (long long)row * pitch + column) = found;
            }
        }
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        if ((threadIdx.x & 3) == 0 && row < queries.lines) {
            float* of_tile = to + (long long)row * pitch + columns + tile.column / N * 2;
            of_tile[0] = top;
            of_tile[1] = total;
        }
    }
}

// What each tile's weights are multiplied by; a thread has those of every 32nd row.
template <int N>
struct Weights {
    static constexpr bool CHECKED = false;
    const blocks::ByTerm& weights;
    const float* top;
    int row, line;
    float (&factors)[ROWS / 32];

    __device__ __forceinline__ float4 operator()(float4 v, int i, int step) const {
        if (step % (N / STEP) == 0) {
            const int l = line + 32 * i;
            const float* of_tile = weights.data + (row + l) * weights.stride + weights.terms + step / (N / STEP) * 2;
            factors[i] = row + l < weights.lines ? exp2f(of_tile[0] - top[l]) * WEIGHT_SCALE : 0.0f;
        }
        return times(v, factors[i]);
    }
};

// A tile of N columns of what weights, in `tiles` of KEYS, make of `values`, which put(row, column, value) stores.
template <int N, int KEYS, class Put>
__device__ __forceinline__ void store_values(unsigned char* shared, const blocks::ByTerm& weights, int tiles,
        const blocks::ByLine& values, blocks::Tile tile, Put put) {
    __shared__ float top[ROWS], share[ROWS];
    if (threadIdx.x < ROWS) {
        const int row = tile.row + threadIdx.x;
        const float* of_tiles = weights.data + row * weights.stride + weights.terms;
        float most = row < weights.lines ? -CUDART_INF_F : 0.0f, total = 0.0f;
        for (int i = 0; i < tiles && row < weights.lines; ++i) {
            most = fmaxf(most, of_tiles[2 * i]);
        }
        for (int i = 0; i < tiles && row < weights.lines; ++i) {
            total += exp2f(of_tiles[2 * i] - most) * of_tiles[2 * i + 1];
        }
        top[threadIdx.x] = most;
        share[threadIdx.x] = 1.0f / total;
    }
    __syncthreads();
    float sum[N / 2], factors[ROWS / 32];
    const int line = (threadIdx.x >> 3 & ~7) | ((threadIdx.x >> 3 & 7) >> 1) | ((threadIdx.x >> 3 & 1) << 2);
    ByTerm<ROWS, Weights<KEYS>> a(weights, tile.row, Weights<KEYS>{weights, top, tile.row, line, factors});
    const bool whole = values.vector && values.lines % 4 == 0;
    const blocks::ByLine fetched{values.data, whole ? values.lines : 0, values.terms, values.stride};
    ByLine<N, Scaled> b(fetched, tile.column, Scaled());
    multiply<N>(sum, aligned(shared), a, b, weights.terms / STEP);
    float unit = 1.0f / (SCALE * WEIGHT_SCALE);
    const bool some = __syncthreads_or(b.most > 0.0f), enough = __syncthreads_or(b.most >= LEAST);
    if (__syncthreads_or(b.most > LARGEST) || (some && !enough) || !whole) {
        unit = 1.0f;
        replace(sum, [&](int row, int column) {
            const float* x = weights.data + (tile.row + row) * weights.stride;
            const float* y = values.data + tile.column + column;
            const bool inside = tile.row + row < weights.lines && tile.column + column < values.lines;
            float found = 0.0f;
            for (int k = 0; k < values.terms && inside; ++k) {
                found = fmaf(x[k] * exp2f(x[weights.terms + k / KEYS * 2] - top[row]), y[k * values.stride], found);
            }
            return found;
        });
    }
    #pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const int row = tile.row + blocks::row_of(i), column = tile.column + blocks::column_of(i);
        if (row < weights.lines && column < values.lines) {
            const float by = unit * share[row - tile.row];
            put(row, column, sum[i] * by);
            if (column + 1 < values.lines) {
                put(row, column + 1, sum[i + 1] * by);
            }
        }
    }
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
ATTENTION_PRODUCT(32, "64", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
ATTENTION_PRODUCT(64, "128", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
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
    const int lane = threadIdx.x & 31;
    for (int row = first + (threadIdx.x >> 5); row < min(first + ROWS, queries.lines); row += THREADS / 32) {
        for (int column = lane; column - lane < values.terms; column += 32) {
            float top = -CUDART_INF_F, total = 0.0f, sum = 0.0f;
            for (int key = lane; key - lane < keys.lines; key += 32) {
                float found = 0.0f;
                for (int k = 0; k < queries.terms && key < keys.lines; ++k) {
                    found = fmaf(number(queries.data[row * queries.stride + k]), number(keys.data[key * keys.stride + k]), found);
                }
                found = key < keys.lines && (!CAUSAL || key <= row) ? score(row, key, found) : -CUDART_INF_F;
                float most = fmaxf(top, found);
                #pragma unroll
                for (int apart = 1; apart < 32; apart *= 2) {
                    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, apart));
                }
                const float origin = most == -CUDART_INF_F ? 0.0f : most;
                const float share = exp2f((top - origin) * LOG2E), weight = exp2f((found - origin) * LOG2E);
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
                put(row, column, sum / total);
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

    // By the producers: LINES lines of up to HEAD numbers, as boxes of 64 neighbours.
    template <int LINES, int HEAD, class Matrix>
    __device__ __forceinline__ void bring(const Matrix& from, int first) {
        const unsigned barrier = barriers + 16 * stage, to = memory + stage * bytes;
        blocks::wait_for(barrier + 8, parity ^ 1);
        if (!from.is_copied()) {
            for (int i = 0; i < HEAD / 64; ++i) {
                from.template load<LINES>(to + i * LINES * 128, first, i);
            }
            blocks::publish();
        } else if (threadIdx.x % blocks::PRODUCERS == 0) {
            blocks::expect(barrier, LINES * HEAD * 2);
            for (int i = 0; i < HEAD / 64; ++i) {
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

// ROWS queries from `first` on, whose outputs are stored at to[index(row, column)]; score(row, column, product) is what softmax is
// taken of.
template <class Matrix, class Score, class T, class Index>
struct Part {
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

    // Replace products of a tile by weights; returns what is to be multiplied with sums of earlier weights.
    template <int KEYS, bool CAUSAL>
    __device__ __forceinline__ float2 weigh(Softmax& softmax, float (&scores)[KEYS / 2], int tile) const {
        const int end = (tile + 1) * KEYS;
        auto of = [&](int row, int column, float product) {
            if constexpr (blocks::SAME<Score, Multiple>) {
                return product;
            } else {
                return score(row, column, product);
            }
        };
        if (end > keys.lines || first + ROWS > queries.lines || (CAUSAL && end > first + (threadIdx.x >> 7) * 64 + 1)) {
            #pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int row = first + blocks::row_of(i), column = tile * KEYS + blocks::column_of(i);
                const bool counts = row < queries.lines && column < keys.lines && (!CAUSAL || column <= row);
                scores[i] = counts ? of(row, column, scores[i]) : -CUDART_INF_F;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                scores[i] = of(first + blocks::row_of(i), tile * KEYS + blocks::column_of(i), scores[i]);
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
__device__ __forceinline__ void end(const Softmax& softmax, float (&sum)[COUNT], const Part& of, int column) {
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
// don't count. `shared` has (ROWS + 4 * KEYS) * HEAD * 2 + 2048 bytes. The blocks of a cluster take one of SPLITS of a part's keys each.
template <int HEAD, int KEYS, bool CAUSAL, class T, int SPLITS = 1, class PartOf>
__device__ __forceinline__ void attend(unsigned char* shared, int count, PartOf part_of) {
    constexpr unsigned STAGE = KEYS * HEAD * 2;
    const unsigned own_queries = aligned(shared), own_keys = own_queries + ROWS * HEAD * 2, own_values = own_keys + 2 * STAGE;
    float sum[HEAD / 2], scores[KEYS / 2];
    unsigned weights[KEYS / 4];
#if BLOCKS_WGMMA
    const unsigned barriers = own_values + 2 * STAGE;
    Pipe<1> of_queries{own_queries, barriers, ROWS * HEAD * 2};
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
            of_queries.template bring<ROWS, HEAD>(of.queries, of.first);
            const int tiles = of.template tiles<KEYS, CAUSAL>(), each = (tiles + SPLITS - 1) / SPLITS;
            const int first_tile = blockIdx.x % SPLITS * each;
            #pragma unroll 1
            for (int tile = first_tile; tile < min(first_tile + each, tiles); ++tile) {
                of_keys.template bring<KEYS, HEAD>(of.keys, tile * KEYS);
                of_values.template bring<KEYS, HEAD>(of.values, tile * KEYS);
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
            Softmax softmax;
            #pragma unroll
            for (int i = 0; i < HEAD / 2; ++i) {
                sum[i] = 0.0f;
            }
            const unsigned own = of_queries.wait();
            if (SPLITS == 1 || first_tile < last_tile) {
                multiply_keys<HEAD, KEYS, T>(scores, own, of_keys.wait());
                wait_for<0>(scores);
                of_keys.release();
                of.template weigh<KEYS, CAUSAL>(softmax, scores, first_tile);
                pack<T>(weights, scores);
            }
            #pragma unroll 1
            for (int tile = first_tile + 1; tile < last_tile; ++tile) {
                const unsigned next = of_keys.wait();
                wait_for_turn(group);
                multiply_keys<HEAD, KEYS, T>(scores, own, next);
                weigh_values<HEAD, KEYS, T>(sum, weights, of_values.wait());
                give_turn(1 - group);
                wait_for<1>(scores);
                of_keys.release();
                const float2 shares = of.template weigh<KEYS, CAUSAL>(softmax, scores, tile);
                wait_for<0>(sum);
                of_values.release();
                scale(sum, shares);
                pack<T>(weights, scores);
            }
            of_queries.release();
            if (SPLITS == 1 || first_tile < last_tile) {
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
            for (int i = 0; i < HEAD / 64 && tile < tiles; ++i) {
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
            for (int i = 0; i < HEAD / 64; ++i) {
                of.queries.template load<ROWS>(own_queries + i * ROWS * 128, of.first, i);
            }
            bring(0);
        }
        Softmax softmax;
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
                scale(sum, of.template weigh<KEYS, CAUSAL>(softmax, scores, tile));
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

// The outputs of ROWS queries from `first` on, which put(row, column, value) stores. `shared` has
// (ROWS + 4 * KEYS) * HEAD * 4 + 1024 bytes.
template <int HEAD, int KEYS, bool CAUSAL, class Score, class Put>
__device__ __forceinline__ void attend(unsigned char* shared, const Rows<float>& queries, const Rows<float>& keys,
        const Rows<float>& values, int first, Score score, Put put) {
    constexpr unsigned STAGE = KEYS * HEAD * 4;
    const unsigned own_queries = aligned(shared), own_keys = own_queries + ROWS * HEAD * 4, own_values = own_keys + 2 * STAGE;
    const int last = CAUSAL ? min(keys.lines, first + ROWS) : keys.lines, tiles = (last + KEYS - 1) / KEYS;
    const bool whole = queries.vector && keys.vector && values.vector && queries.terms % 4 == 0 && values.terms % 4 == 0;
    const bool possible = whole && queries.terms <= HEAD && values.terms <= HEAD;
    float most = 0.0f, most_value = 0.0f, sum[HEAD / 2];
    Softmax softmax;
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
                const bool counts = row < queries.lines && column < keys.lines && (!CAUSAL || column <= row);
                scores[i] = counts ? score(row, column, product) : -CUDART_INF_F;
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
    if (__syncthreads_or(!possible || most > LARGEST || most_value > LARGEST) || (some && !enough)) {
        attend_exactly<CAUSAL>(queries, keys, values, first, score, put);
        return;
    }
    #pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) {
        const int row = first + blocks::row_of(i), column = blocks::column_of(i);
        if (row < queries.lines && column < values.terms) {
            put(row, column, sum[i] * (1.0f / SCALE) / softmax.total[i >> 1 & 1]);
        }
    }
}

}  // namespace attention
