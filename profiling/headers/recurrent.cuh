// The steps of recurrent layers, for NVRTC and nvcc, sm_80 and later. docs/blocks.md describes it.
#pragma once

#include "blocks.cuh"

namespace recurrent {

constexpr int THREADS = 512;

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// A layer of GATES. SLOTS are sums of a unit, of which lane `slot` has one: `shown` is that of what the input gives and the hidden
// state adds, and `next` the unit's new state, given all of them and its own place in memory (`cell`).
struct Lstm {
    static constexpr int GATES = 4, SLOTS = 4, STATES = 2;

    static __device__ __forceinline__ float shown(int slot, float given, float added) {
        const float x = given + added;
        return slot == 2 ? tanhf(x) : sigmoid(x);
    }
    static __device__ __forceinline__ float next(const float (&of)[SLOTS], float, float, float& cell) {
        cell = of[1] * cell + of[0] * of[2];
        return of[3] * tanhf(cell);
    }
};

// `given` and `hidden` are what the input gives to the last gate, and the hidden state so far.
struct Gru {
    static constexpr int GATES = 3, SLOTS = 4, STATES = 1;

    static __device__ __forceinline__ float shown(int slot, float given, float added) {
        return slot < 2 ? sigmoid(given + added) : added;
    }
    static __device__ __forceinline__ float next(const float (&of)[SLOTS], float given, float hidden, float&) {
        const float found = tanhf(given + of[0] * of[2]);
        return found + of[1] * (hidden - found);
    }
};

struct Tanh {
    static constexpr int GATES = 1, SLOTS = 1, STATES = 1;

    static __device__ __forceinline__ float shown(int, float given, float added) { return tanhf(given + added); }
    static __device__ __forceinline__ float next(const float (&of)[SLOTS], float, float, float&) { return of[0]; }
};

struct Relu : Tanh {
    static __device__ __forceinline__ float shown(int, float given, float added) { return fmaxf(given + added, 0.0f); }
};

// Sums of four numbers over LANES neighbours, of which lane i gets number i % 4; or of one, which all get.
template <int LANES>
__device__ __forceinline__ float summed(const float (&sums)[4], int lane) {
    const bool upper = lane & 2, odd = lane & 1;
    float one = upper ? sums[2] : sums[0], other = upper ? sums[3] : sums[1];
    one += __shfl_xor_sync(0xffffffff, upper ? sums[0] : sums[2], 2);
    other += __shfl_xor_sync(0xffffffff, upper ? sums[1] : sums[3], 2);
    float found = (odd ? other : one) + __shfl_xor_sync(0xffffffff, odd ? one : other, 1);
    #pragma unroll
    for (int distance = 4; distance < LANES; distance *= 2) {
        found += __shfl_xor_sync(0xffffffff, found, distance);
    }
    return found;
}

template <int LANES>
__device__ __forceinline__ float summed(const float (&sums)[1], int) {
    float found = sums[0];
    #pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        found += __shfl_xor_sync(0xffffffff, found, distance);
    }
    return found;
}

// Floats of shared memory for a block's `units`.
template <int LANES, int TERMS, int ROWS>
__device__ __forceinline__ int pitch_of(int units) {
    const int step = 4 * LANES;
    return max(LANES * TERMS, (units + step - 1) / step * step);
}

// All steps of a layer, by clusters of CLUSTER blocks with THREADS threads: each has up to ROWS rows of the batch in one direction. LANES
// neighbours share a unit; of its weights each keeps TERMS terms in registers, and reads others again at each step, as it
// does all those of units that are too many to have lanes of their own. Shared memory holds the state of all units, which
// blocks send each other, twice, and the cells: `3 * ROWS * max(LANES * TERMS, units rounded up to 4 * LANES)` floats.
// A line is a gate's unit: `direction * GATES * units + gate * units + unit`. `given(step, row, line)` is what the input gives to it,
// `weight(line, term)` and `bias(line)` are the hidden state's, `first(direction, row, unit)` and `cells(direction, row, unit)` the states
// to begin with, and `put(part, step, row, column, value)` stores them, where a column is `direction * units + unit`.
template <class Cell, int LANES, int TERMS, int CLUSTER, int ROWS, class Given, class Weight, class Bias, class First, class Cells,
          class Put>
__device__ __forceinline__ void run(unsigned char* shared, int steps, int rows, int units, Given given, Weight weight, Bias bias,
                                    First first, Cells cells, Put put) {
    constexpr int GROUPS = THREADS / LANES, GATES = Cell::GATES, SLOTS = Cell::SLOTS;
    static_assert(LANES >= 4 && LANES <= 32 && TERMS % 4 == 0);
#if BLOCKS_WGMMA
    constexpr int BLOCKS = CLUSTER;
#else
    constexpr int BLOCKS = 1;  // the first of them does all
    if (blockIdx.x % CLUSTER) {
        return;
    }
#endif
    const int block = BLOCKS == 1 ? 0 : blockIdx.x % CLUSTER;
    const int parts = (rows + ROWS - 1) / ROWS, number = blockIdx.x / CLUSTER;
    const int direction = number / parts, from = number % parts * ROWS;
    const int lane = threadIdx.x % LANES, own = block * GROUPS + threadIdx.x / LANES, slot = lane % SLOTS, gate = min(slot, GATES - 1);
    const int pitch = pitch_of<LANES, TERMS, ROWS>(units), lines = direction * GATES * units;
    float* state = reinterpret_cast<float*>(shared);
    float* memory = state + 2 * ROWS * pitch;
    for (int i = threadIdx.x; i < ROWS * pitch; i += THREADS) {
        const int row = min(from + i / pitch, rows - 1), unit = i % pitch;
        state[i] = unit < units ? first(direction, row, unit) : 0.0f;
        state[ROWS * pitch + i] = 0.0f;
        memory[i] = Cell::STATES > 1 && unit < units ? cells(direction, row, unit) : 0.0f;
    }
    float kept[GATES][TERMS];
    #pragma unroll
    for (int g = 0; g < GATES; ++g) {
        #pragma unroll
        for (int j = 0; j < TERMS; ++j) {
            const int term = (j / 4 * LANES + lane) * 4 + j % 4;
            kept[g][j] = own < units && term < units ? weight(lines + g * units + own, term) : 0.0f;
        }
    }
    const auto sync = [&]() {
#if BLOCKS_WGMMA
        if (BLOCKS > 1) {
            blocks::cluster_barrier();
            return;
        }
#endif
        __syncthreads();
    };
    float ahead[ROWS];
    const auto look = [&](int step, int unit) {
        const int at = direction ? steps - 1 - step : step;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            ahead[r] = step < steps && unit < units ? given(at, min(from + r, rows - 1), lines + gate * units + unit) : 0.0f;
        }
    };
    look(0, own);
    const float shift = own < units ? bias(lines + gate * units + own) : 0.0f;
    sync();
    for (int step = 0; step < steps; ++step) {
        const float* now = state + step % 2 * ROWS * pitch;
        float* later = state + (step + 1) % 2 * ROWS * pitch;
        const int at = direction ? steps - 1 - step : step;
        for (int turn = 0; turn * BLOCKS * GROUPS < units; ++turn) {
            const int unit = turn * BLOCKS * GROUPS + own;
            const bool inside = unit < units;
            float added = shift;
            if (turn) {
                look(step, unit);
                added = inside ? bias(lines + gate * units + unit) : 0.0f;
            }
            float sums[ROWS][SLOTS] = {};
            if (turn == 0) {
                #pragma unroll
                for (int j = 0; j < TERMS; j += 4) {
                    #pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        const float4 h = *reinterpret_cast<const float4*>(now + r * pitch + (j / 4 * LANES + lane) * 4);
                        #pragma unroll
                        for (int g = 0; g < GATES; ++g) {
                            sums[r][g] += kept[g][j] * h.x + kept[g][j + 1] * h.y + kept[g][j + 2] * h.z + kept[g][j + 3] * h.w;
                        }
                    }
                }
            }
            for (int term = (turn ? 0 : LANES * TERMS) + lane; term < units && inside; term += LANES) {
                #pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    const float w = weight(lines + g * units + unit, term);
                    #pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        sums[r][g] += w * now[r * pitch + term];
                    }
                }
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int place = r * pitch + (inside ? unit : 0);
                float cell = 0.0f;  // in memory of the first lane
                if (Cell::STATES > 1) {
                    cell = __shfl_sync(0xffffffff, lane == 0 && inside ? memory[place] : 0.0f, 0, LANES);
                }
                const float sum = summed<LANES>(sums[r], lane);
                const float shown = Cell::shown(slot, ahead[r], sum + added);
                float of[SLOTS];
                #pragma unroll
                for (int i = 0; i < SLOTS; ++i) {
                    of[i] = __shfl_sync(0xffffffff, shown, i, LANES);
                }
                const float last = __shfl_sync(0xffffffff, ahead[r], GATES - 1, LANES);
                const float found = Cell::next(of, last, now[place], cell);
                if (inside) {
#if BLOCKS_WGMMA
                    if (BLOCKS > 1) {
                        const unsigned there = (unsigned)__cvta_generic_to_shared(later + place);
                        for (int each = lane; each < BLOCKS; each += LANES) {
                            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(blocks::address_at(there, each)), "f"(found) : "memory");
                        }
                    }
#endif
                    if (lane == 0) {
                        if (BLOCKS == 1) {
                            later[place] = found;
                        }
                        if (Cell::STATES > 1) {
                            memory[place] = cell;
                        }
                        if (from + r < rows) {
                            put(0, at, from + r, direction * units + unit, found);
                            if (Cell::STATES > 1) {
                                put(1, at, from + r, direction * units + unit, cell);
                            }
                        }
                    }
                }
            }
        }
        look(step + 1, own);
        sync();
    }
}

}  // namespace recurrent
