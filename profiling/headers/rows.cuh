// What kernels of rows, scans, pools and chains call, for NVRTC and nvcc. docs/blocks.md describes it.
#pragma once

// N elements that are loaded or stored at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
    T of[N];
};

template <int N, typename T>
__device__ __forceinline__ bool aligned(const T* at) {
    return reinterpret_cast<size_t>(at) % (sizeof(T) * N) == 0;
}

// Loads the elements from k on of a run of `length`, of which those outside of it are left as they are. All are inside
// and aligned if a tile is `whole`.
template <typename T, int N, typename Index>
__device__ __forceinline__ void load(T (&values)[N], const T* run, Index k, Index length, bool whole = false) {
    if (whole || (k >= 0 && k + N <= length && aligned<N>(run + k))) {
        const Vector<T, N> found = *reinterpret_cast<const Vector<T, N>*>(run + k);
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            values[v] = found.of[v];
        }
    } else {
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            if (k + v >= 0 && k + v < length) {
                values[v] = run[k + v];
            }
        }
    }
}

// N numbers of 16 bits in as few registers as they fit into: each is taken out where it is used, again and again.
template <typename T, int N>
struct Packed {
    static_assert(sizeof(T) == 2);
    unsigned words[(N + 1) / 2];

    __device__ __forceinline__ T operator[](int v) const {
        union {
            unsigned short bits;
            T value;
        } found;
        if (v % 2 == 0) {
            asm volatile("{.reg .b16 other; mov.b32 {%0, other}, %1;}" : "=h"(found.bits) : "r"(words[v / 2]));
        } else {
            asm volatile("{.reg .b16 other; mov.b32 {other, %0}, %1;}" : "=h"(found.bits) : "r"(words[v / 2]));
        }
        return found.value;
    }
};

template <typename T, int N, typename Index>
__device__ __forceinline__ void load(Packed<T, N>& values, const T* run, Index k, Index length, bool whole = false) {
    constexpr int W = (N + 1) / 2;
    const unsigned short* bits = reinterpret_cast<const unsigned short*>(run);
    if (N % 2 == 0 && (whole || (k >= 0 && k + N <= length && aligned<N>(run + k)))) {
        const Vector<unsigned, W> found = *reinterpret_cast<const Vector<unsigned, W>*>(run + k);
        #pragma unroll
        for (int w = 0; w < W; ++w) {
            values.words[w] = found.of[w];
        }
    } else {
        #pragma unroll
        for (int w = 0; w < W; ++w) {
            values.words[w] = k + 2 * w >= 0 && k + 2 * w < length ? bits[k + 2 * w] : 0;
            if (2 * w + 1 < N && k + 2 * w + 1 >= 0 && k + 2 * w + 1 < length) {
                values.words[w] |= (unsigned)bits[k + 2 * w + 1] << 16;
            }
        }
    }
}

// Stores the elements from k on of a run of `length`, without those outside of it.
template <typename T, int N, typename Index>
__device__ __forceinline__ void store(T* run, const T (&values)[N], Index k, Index length, bool whole = false) {
    if (whole || (k >= 0 && k + N <= length && aligned<N>(run + k))) {
        Vector<T, N> found;
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            found.of[v] = values[v];
        }
        *reinterpret_cast<Vector<T, N>*>(run + k) = found;
    } else {
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            if (k + v >= 0 && k + v < length) {
                run[k + v] = values[v];
            }
        }
    }
}

// By the hardware's approximation, as torch.compile has it: its relative error is 1e-7 and 6e-8 of the exponent.
__device__ __forceinline__ float exponential(float x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x * 1.4426950408889634f));
    return found;
}

// Stores a vector at once, also where the compiler would store its elements one by one.
template <typename T, int N>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, N>& vector) {
    union {
        Vector<T, N> vector;
        unsigned of[4];
    } words;
    words.vector = vector;
    if (sizeof(vector) == 16) {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     ::"l"(to), "r"(words.of[0]), "r"(words.of[1]), "r"(words.of[2]), "r"(words.of[3]) : "memory");
    } else if (sizeof(vector) == 8) {
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.of[0]), "r"(words.of[1]) : "memory");
    } else {
        *reinterpret_cast<Vector<T, N>*>(to) = vector;
    }
}

// The larger and the smaller of two numbers; NaN if either is.
__device__ __forceinline__ float larger(float left, float right) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(left), "f"(right));
    return found;
}

__device__ __forceinline__ float smaller(float left, float right) {
    float found;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(left), "f"(right));
    return found;
}

// The maxima of two parts of a row, and their sums of exponentials of differences from those; the first ones become those of both.
__device__ __forceinline__ void merge_softmax(float& top, float& sum, float other_top, float other_sum) {
    const float both = other_top > top || other_top != other_top ? other_top : top;
    sum *= exponential(top == both ? 0.0f : top - both);
    sum += other_sum * exponential(other_top == both ? 0.0f : other_top - both);
    top = both;
}

// The same with means, sums of squared differences from them, and counts.
__device__ __forceinline__ void merge_moments(float& mean, float& squares, float& count, float other_mean, float other_squares, float other_count) {
    const float both = count + other_count, share = __fdividef(other_count, fmaxf(both, 1.0f)), apart = other_mean - mean;
    mean += share * apart;
    squares += other_squares + apart * apart * count * share;
    count = both;
}

// Whether an element comes before the best one; NaN comes first. Neither && nor ||, for which threads would branch, and a comparison that NaN passes.
template <bool Largest, typename T>
__device__ __forceinline__ bool is_better(T value, T best) {
    return !(Largest ? value <= best : value >= best) & (best == best);
}

template <bool Largest, typename T, typename Place>
__device__ __forceinline__ void merge_place(T& best, Place& place, T other, Place at) {
    const bool equal = (other == best) | ((other != other) & (best != best));
    const bool comes = (at >= 0) & (is_better<Largest>(other, best) | ((at < place) & equal));
    best = comes ? other : best;
    place = comes ? at : place;
}

// Elements come in the order of their places, or Backwards.
template <bool Largest, bool Backwards, typename T, typename Place>
__device__ __forceinline__ void add_place(T& best, Place& place, T value, long long at) {
    const bool equal = Backwards & ((value == best) | ((value != value) & (best != best)));
    const bool comes = is_better<Largest>(value, best) | (((Place)at < place) & equal);
    best = comes ? value : best;
    place = comes ? (Place)at : place;
}

// The state of another lane of the warp: `lanes` apart, or number `lanes`.
template <bool Apart = true, typename State>
__device__ __forceinline__ State of_lane(const State& state, int lanes) {
    union Words {
        State state;
        int of[sizeof(State) / 4];
    };
    Words words;
    words.state = state;
    #pragma unroll
    for (int w = 0; w < sizeof(State) / 4; ++w) {
        words.of[w] = Apart ? __shfl_xor_sync(0xffffffff, words.of[w], lanes) : __shfl_sync(0xffffffff, words.of[w], lanes);
    }
    return words.state;
}

// Merges a state of each of the Threads threads of a row, for all of them.
template <int Threads, int Rows, typename State>
__device__ __forceinline__ void across(State& state) {
    #pragma unroll
    for (int lanes = (Threads < 32 ? Threads : 32) / 2; lanes > 0; lanes /= 2) {
        merge(state, of_lane(state, lanes));
    }
    if (Threads > 32) {
        constexpr int Warps = (Threads + 31) / 32;
        __shared__ State of_warps[Rows][Warps];
        __syncthreads();
        if (threadIdx.x % 32 == 0) {
            of_warps[threadIdx.y][threadIdx.x / 32] = state;
        }
        __syncthreads();
        state = of_warps[threadIdx.y][threadIdx.x % Warps];
        #pragma unroll
        for (int lanes = Warps / 2; lanes > 0; lanes /= 2) {
            merge(state, of_lane(state, lanes));
        }
        state = of_lane<false>(state, 0);
    }
}

// Merges a state of each of the Lanes threads of a column, for all of them.
template <int Columns, int Lanes, typename State>
__device__ __forceinline__ void across_lanes(State& state) {
    if (Lanes > 1) {
        __shared__ State of_lanes[Lanes][Columns];
        __syncthreads();
        of_lanes[threadIdx.y][threadIdx.x] = state;
        __syncthreads();
        state = of_lanes[0][threadIdx.x];
        #pragma unroll
        for (int lane = 1; lane < Lanes; ++lane) {
            merge(state, of_lanes[lane][threadIdx.x]);
        }
    }
}

// The sums (or products, by Op) of all elements of a row up to each one, for a tile of VECTOR neighbours at a time;
// `before` is that of earlier tiles, and then that of this one too. An Exclusive one is without the element itself.
template <typename Op, bool Reverse, bool Exclusive, int Rows, int Threads, typename T, int Items, int N>
__device__ __forceinline__ void scan(T (&values)[Items][N], T& before) {
    constexpr int Lanes = Threads < 32 ? Threads : 32, Warps = Threads / Lanes;
    __shared__ T of_warps[Rows][Items][Warps];
    const int lane = threadIdx.x % Lanes, warp = threadIdx.x / Lanes;
    T of_lanes[Items];
    #pragma unroll
    for (int j = 0; j < Items; ++j) {
        #pragma unroll
        for (int n = 1; n < N; ++n) {
            const int v = Reverse ? N - 1 - n : n;
            values[j][v] = Op::of(values[j][Reverse ? v + 1 : v - 1], values[j][v]);
        }
        T total = values[j][Reverse ? 0 : N - 1];
        #pragma unroll
        for (int step = 1; step < Lanes; step *= 2) {
            const T other = Reverse ? __shfl_down_sync(0xffffffff, total, step, Lanes)
                                    : __shfl_up_sync(0xffffffff, total, step, Lanes);
            total = (Reverse ? lane + step < Lanes : lane >= step) ? Op::of(other, total) : total;
        }
        of_lanes[j] = Reverse ? __shfl_down_sync(0xffffffff, total, 1, Lanes)
                              : __shfl_up_sync(0xffffffff, total, 1, Lanes);
        of_lanes[j] = lane == (Reverse ? Lanes - 1 : 0) ? Op::start() : of_lanes[j];
        if (lane == (Reverse ? 0 : Lanes - 1)) {
            of_warps[threadIdx.y][j][warp] = total;
        }
    }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < Items; ++n) {
        const int j = Reverse ? Items - 1 - n : n;
        T mine = before;
        #pragma unroll
        for (int m = 0; m < Warps; ++m) {
            const int w = Reverse ? Warps - 1 - m : m;
            mine = w == warp ? before : mine;
            before = Op::of(before, of_warps[threadIdx.y][j][w]);
        }
        mine = Op::of(mine, of_lanes[j]);
        #pragma unroll
        for (int n = N - 1; n >= 0; --n) {
            const int v = Reverse ? N - 1 - n : n, from = Reverse ? v + Exclusive : v - Exclusive;
            values[j][v] = Exclusive && n == 0 ? mine : Op::of(mine, values[j][from]);
        }
    }
    __syncthreads();
}

// The same for rows that are neighbours: Lanes threads each have Items elements of a row that follow each other.
template <typename Op, bool Reverse, bool Exclusive, int Columns, int Lanes, typename T, int Items>
__device__ __forceinline__ void scan_columns(T (&values)[Items], T& before) {
    __shared__ T of_lanes[Lanes][Columns];
    #pragma unroll
    for (int n = 1; n < Items; ++n) {
        const int j = Reverse ? Items - 1 - n : n;
        values[j] = Op::of(values[Reverse ? j + 1 : j - 1], values[j]);
    }
    of_lanes[threadIdx.y][threadIdx.x] = values[Reverse ? 0 : Items - 1];
    if (Lanes > 1) {
        __syncthreads();
    }
    T mine = before;
    #pragma unroll
    for (int m = 0; m < Lanes; ++m) {
        const int lane = Reverse ? Lanes - 1 - m : m;
        mine = lane == threadIdx.y ? before : mine;
        before = Op::of(before, of_lanes[lane][threadIdx.x]);
    }
    #pragma unroll
    for (int n = Items - 1; n >= 0; --n) {
        const int j = Reverse ? Items - 1 - n : n, from = Reverse ? j + Exclusive : j - Exclusive;
        values[j] = Exclusive && n == 0 ? mine : Op::of(mine, values[from]);
    }
    if (Lanes > 1) {
        __syncthreads();
    }
}

// 2^64 / by, rounded up; 0 for 1, whose quotients need none.
__device__ __forceinline__ unsigned long long inverse_of(int by) {
    return 0xffffffffffffffffull / by + 1;
}

// k / by for k >= 0, without a division: the error of the inverse is too small to tell.
__device__ __forceinline__ int quotient(int k, unsigned long long inverse) {
    return inverse == 0 ? k : (int)__umul64hi((unsigned)k, inverse);
}

// Divides by the same number again and again, by two products; as precise as a division but for the last bit.
struct Divisor {
    float scale, inverse;

    __device__ __forceinline__ explicit Divisor(float by)
        : scale(fabsf(by) > 0x1p125f ? 0x1p-24f : fabsf(by) < 0x1p-125f ? 0x1p24f : 1.0f), inverse(1.0f / (by * scale)) {}
};

__device__ __forceinline__ float operator/(float number, const Divisor& by) {
    return number * by.scale * by.inverse;
}

// ---- Pools

// Windows along an axis of Size taps, Apart elements apart: the first one begins Before the first element, and each further one Step later.
template <int Size, int Step, int Before, int Apart>
struct Windows {
    static constexpr int SIZE = Size, STEP = Step, BEFORE = Before, APART = Apart, SPAN = (Size - 1) * Apart + 1;

    __device__ __forceinline__ static int begin(int result) {
        return result * Step - Before;
    }
};

// What Items neighbouring windows cover, in vectors of N elements, of which the first one begins Before the first window of a row.
template <typename Windows, int Items>
struct Covering {
    static constexpr int N = Items * Windows::STEP % 4 == 0 ? 4 : Items * Windows::STEP % 2 == 0 ? 2 : 1;
    static constexpr int BEFORE = (Windows::BEFORE + N - 1) / N * N, FIRST = BEFORE - Windows::BEFORE;
    static constexpr int COUNT = (FIRST + (Items - 1) * Windows::STEP + Windows::SPAN + N - 1) / N;

    // Whether vectors can be loaded from rows of so many columns, and results be stored in vectors.
    template <typename T, typename Out>
    __device__ __forceinline__ static bool fits(const T* x, int columns, const Out* out, int results) {
        return x && Items > 1 && Items <= 4 && Windows::STEP <= 4 && N * COUNT <= 64 && columns % N == 0 && aligned<N>(x) && results % Items == 0 && aligned<Items>(out);
    }
};

// The largest numbers of windows, or their sums, of Run results below each other in Items columns: neighbours in `vectors`, or else Threads apart.
// Windows that overlap share what `read(depth, row, column)` gives of a row, which `row_of(depth, row)` points to; what is outside of the extents
// isn't read.
template <bool Largest, int Threads, typename Depths, typename Rows, typename Columns, int Run, int Items, class Read, class RowOf>
__device__ __forceinline__ void pool(float (&found)[Run][Items], float start, int depth, int row, int column, int depths, int rows, int columns,
        bool vectors, Read read, RowOf row_of) {
    using Cover = Covering<Columns, Items>;
    constexpr bool few = Depths::SIZE * Rows::SIZE * Columns::SIZE <= 32;
    constexpr int LINES = (Run - 1) * Rows::STEP + Rows::SPAN, NEXT = Run > 1 ? 1 : Rows::APART, N = Cover::N;
    const auto add = [](float left, float right) { return Largest ? larger(left, right) : left + right; };
    #pragma unroll
    for (int r = 0; r < Run; ++r) {
        #pragma unroll
        for (int j = 0; j < Items; ++j) {
            found[r][j] = start;
        }
    }
    #pragma unroll(few ? Depths::SIZE : 1)
    for (int d = 0; d < Depths::SIZE; ++d) {
        const int in_depth = Depths::begin(depth) + d * Depths::APART;
        #pragma unroll(few ? LINES : 1)
        for (int line = 0; line < LINES; line += NEXT) {
            const int in_row = Rows::begin(row) + line;
            if ((unsigned)in_depth >= (unsigned)depths || (unsigned)in_row >= (unsigned)rows) {
                continue;
            }
            float of_line[Items];
            #pragma unroll
            for (int j = 0; j < Items; ++j) {
                of_line[j] = start;
            }
            if (vectors) {
                Vector<float, N> values[Cover::COUNT];
                #pragma unroll
                for (int c = 0; c < Cover::COUNT; ++c) {
                    const int in_column = column * Columns::STEP - Cover::BEFORE + c * N;
                    if ((unsigned)in_column < (unsigned)columns) {
                        values[c] = *reinterpret_cast<const Vector<float, N>*>(row_of(in_depth, in_row) + in_column);
                    } else {
                        #pragma unroll
                        for (int n = 0; n < N; ++n) {
                            values[c].of[n] = start;
                        }
                    }
                }
                #pragma unroll
                for (int j = 0; j < Items; ++j) {
                    #pragma unroll
                    for (int tap = 0; tap < Columns::SIZE; ++tap) {
                        const int at = Cover::FIRST + j * Columns::STEP + tap * Columns::APART;
                        of_line[j] = add(of_line[j], values[at / N].of[at % N]);
                    }
                }
            } else {
                #pragma unroll
                for (int j = 0; j < Items; ++j) {
                    #pragma unroll
                    for (int tap = 0; tap < Columns::SIZE; ++tap) {
                        const int in_column = Columns::begin(column + j * Threads) + tap * Columns::APART;
                        if ((unsigned)in_column < (unsigned)columns) {
                            of_line[j] = add(of_line[j], read(in_depth, in_row, in_column));
                        }
                    }
                }
            }
            #pragma unroll
            for (int r = 0; r < Run; ++r) {
                const int of_window = line - r * Rows::STEP;
                if (of_window >= 0 && of_window < Rows::SPAN && of_window % Rows::APART == 0) {
                    #pragma unroll
                    for (int j = 0; j < Items; ++j) {
                        found[r][j] = add(found[r][j], of_line[j]);
                    }
                }
            }
        }
    }
}

// Stores what `finish(line, column, pooled)` makes of such results in the rows that `row_to(line)` points to.
template <int Threads, int Run, int Items, class RowTo, class Finish>
__device__ __forceinline__ void store_pools(const float (&found)[Run][Items], int row, int column, int lines, int columns, bool vectors,
        RowTo row_to, Finish finish) {
    using Out = decltype(finish(0, 0, 0.0f));
    #pragma unroll
    for (int r = 0; r < Run; ++r) {
        const int line = row + r;
        if (line < lines) {
            Vector<Out, Items> results;
            #pragma unroll
            for (int j = 0; j < Items; ++j) {
                const int at = vectors ? column + j : column + j * Threads;
                if (at < columns) {
                    results.of[j] = finish(line, at, found[r][j]);
                    if (!vectors) {
                        row_to(line)[at] = results.of[j];
                    }
                }
            }
            if (vectors && column < columns) {
                store_vector(row_to(line) + column, results);
            }
        }
    }
}

// ---- Rows that pass through a ring of tiles in shared memory: each is read once, by teams of blocks that hold some rows together.

__device__ __forceinline__ void init_barrier(unsigned long long& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(&barrier)), "r"(arrivals) : "memory");
}

// Arrives for a warp.
__device__ __forceinline__ void arrive(unsigned long long& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" ::"r"((unsigned)__cvta_generic_to_shared(&barrier))
                     : "memory");
    }
}

__device__ __forceinline__ void await(unsigned long long& barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"((unsigned)__cvta_generic_to_shared(&barrier)), "r"(parity) : "memory");
#else
    asm volatile("{.reg .pred done;\nagain:\nmbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"((unsigned)__cvta_generic_to_shared(&barrier)), "r"(parity) : "memory");
#endif
}

// Something that passes from some warps to others through Slots places: who fills and who empties them each keep where they are.
template <int Slots>
struct Queue {
    unsigned long long full[Slots], empty[Slots];

    __device__ __forceinline__ void init(int fillers, int emptiers) {
        for (int s = 0; s < Slots; ++s) {
            init_barrier(full[s], fillers);
            init_barrier(empty[s], emptiers);
        }
    }
};

template <int Slots>
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++slot == Slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// The tiles of a block, in order: those of the rows of its team one after another are dealt to its blocks.
template <typename Index>
struct Walk {
    Index row, rows;
    int tile, tiles, teams, more_rows, more_tiles;

    __device__ __forceinline__ bool more() const {
        return row < rows;
    }
    __device__ __forceinline__ void next() {
        row += more_rows;
        tile += more_tiles;
        if (tile >= tiles) {
            tile -= tiles;
            row += teams;
        }
    }
    __device__ __forceinline__ void next_row() {
        for (const Index last = row; row == last;) {
            next();
        }
    }
};

// Whether all blocks run at the same time: no, for all of them, if one doesn't come in a while. `come` begins as zeros.
__device__ __forceinline__ bool all_come(int* come) {
    volatile int* verdict = come + 1;
    if (atomicAdd(come, 1) + 1 == gridDim.x) {
        atomicCAS(come + 1, 0, 1);
    }
    for (int i = 0; i < 256 && *verdict == 0; ++i) {
#if __CUDA_ARCH__ >= 700
        __nanosleep(500);
#endif
    }
    atomicCAS(come + 1, 0, 2);
    return *verdict == 1;
}

// Brings the vectors of a tile to shared memory, also those partly outside of the run, unless they are outside of the tensor.
template <int Tile, int N, typename T>
__device__ __forceinline__ void copy_tile(T* slot, const T* end, const T* run, int start, int length, unsigned long long& full) {
#if __CUDA_ARCH__ >= 900
    const int count = min((long long)min(Tile, (length - start + N - 1) / N * N), (long long)(end - (run + start)) / N * N);
    if (count > 0) {
        const unsigned barrier = (unsigned)__cvta_generic_to_shared(&full), bytes = count * (unsigned)sizeof(T);
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"((unsigned)__cvta_generic_to_shared(slot)), "l"(run + start), "r"(bytes), "r"(barrier) : "memory");
    }
#endif
}

// The elements from k on of a run, from its tile in shared memory, or from memory what wasn't copied. The tensor ends at `end`.
template <typename Values, typename T>
__device__ __forceinline__ void take(Values& values, const T* slot, const T* end, const T* run, int start, int k, int length, bool copied, bool whole) {
#if __CUDA_ARCH__ >= 900
    constexpr int N = sizeof(Values) / sizeof(T);
    if (whole || (copied && k < length && run + k + N <= end)) {
        load(values, slot, k - start, 1 << 30, true);
        return;
    }
#endif
    load(values, run, k, length, whole);
}

// What other blocks are told: a word and a mark at once, so that none waits for what was written before. `packets` begin as zeros.
template <typename State>
union Words {
    State state;
    unsigned of[sizeof(State) / 4];
};

template <typename State>
__device__ __forceinline__ void tell(unsigned long long* packets, const State& state) {
    Words<State> words;
    words.state = state;
    #pragma unroll
    for (int w = 0; w < sizeof(State) / 4; ++w) {
        asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(packets + w), "l"(1ull << 32 | words.of[w]) : "memory");
    }
}

// Merges the states of so many threads of a warp, for the first one.
template <int Threads, typename State>
__device__ __forceinline__ void across_warp(State& state) {
    __syncwarp();
    #pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        if (lanes < Threads) {
            merge(state, of_lane(state, lanes));
        }
    }
}

// Adds a state that another block tells.
template <typename State>
__device__ __forceinline__ void wait_for(State& state, const unsigned long long* packets) {
    Words<State> words;
    bool found;
    do {
        found = true;
        #pragma unroll
        for (int w = 0; w < sizeof(State) / 4; ++w) {
            unsigned long long packet;
            asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(packet) : "l"(packets + w) : "memory");
            words.of[w] = (unsigned)packet;
            found = found && packet >> 32 != 0;
        }
    } while (!found);
    merge(state, words.state);
}

// Adds the states that up to Blocks others tell, for the first thread of a warp.
template <int Blocks, typename State>
__device__ __forceinline__ void hear(State& state, const unsigned long long* packets, int count) {
    for (int p = threadIdx.x % 32; p < count; p += 32) {
        wait_for(state, packets + p * (sizeof(State) / 4));
    }
    across_warp<Blocks>(state);
}

// ---- Scans of rows whose tiles are scanned by a block each.

// A number for each block, in the order in which they begin: those of lower ones can be waited for. `drawn` begins as zero.
__device__ __forceinline__ int drawn_number(int* drawn) {
    __shared__ int number;
    if (threadIdx.x == 0) {
        number = atomicAdd(drawn, 1);
    }
    __syncthreads();
    return number;
}

template <typename Op, typename T>
struct Scanned {
    T value;
};

template <typename Op, typename T>
__device__ __forceinline__ void merge(Scanned<Op, T>& into, const Scanned<Op, T>& other) {
    into.value = Op::of(into.value, other.value);
}

// What all tiles of a row before number `tile` come to, given this one's total. A tile waits for those of its group of 256, and for the last one of
// the group before, which tells what all up to it come to: always in the same order. A tile has two packets for each word, which begin as zeros.
template <typename Op, int Threads, typename T>
__device__ __forceinline__ T of_earlier_tiles(unsigned long long* packets, long long row, int tile, int tiles, T total) {
    constexpr int Group = 256, Count = sizeof(T) / 4;
    const int first = tile / Group * Group;
    unsigned long long *totals = packets + row * tiles * 2 * Count, *sums = totals + (long long)tiles * Count;
    if (threadIdx.x == 0) {
        tell(totals + (long long)tile * Count, Scanned<Op, T>{total});
    }
    Scanned<Op, T> earlier = {Op::start()};
    for (int other = first - 1 + threadIdx.x; other < tile; other += Threads) {
        if (other >= 0) {
            wait_for(earlier, (other < first ? sums : totals) + (long long)other * Count);
        }
    }
    across<Threads, 1>(earlier);
    if (threadIdx.x == 0 && tile % Group == Group - 1) {
        tell(sums + (long long)tile * Count, Scanned<Op, T>{Op::of(earlier.value, total)});
    }
    return earlier.value;
}

constexpr int AHEAD = 4;

// In each of 2 Threads + 96 threads of a block: half of the former reduce tiles, and the other half write them when they know about the
// row. A thread copies tiles to shared memory, a warp merges what is found of the block's tiles of a row and tells it to the
// other blocks of the team, and one hears of theirs. `copy(row, tile, stage, full)`, `reduce(row)(tile, stage, lane, whole,
// state)` and `write(row, state)(tile, stage, lane, whole)` do it with a tile, of which vectors are taken without tests if it may be
// `whole`. If a team can't hold a row, or blocks don't run together, each has rows of its own, read twice; so it is on GPUs that can't
// copy tiles.
template <int Threads, int Blocks, int Stages, typename State, typename Index, class Copy, class Reduce, class Write>
__device__ __forceinline__ void pass_rows(int* come, unsigned long long* packets, Index rows, int tiles, bool aligned, State start,
        Copy copy, Reduce reduce, Write write) {
    constexpr int Warps = Threads / 32, Count = sizeof(State) / 4;
    __shared__ Queue<Stages> ring;
    __shared__ Queue<AHEAD> parts, known;
    __shared__ State of_warps[AHEAD][Warps], of_rows[AHEAD];
    __shared__ bool all_together;
    if (threadIdx.x == 0) {
        ring.init(1, 2 * Warps);
        parts.init(Warps, 1);
        known.init(1, Warps);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
        all_together = aligned && (tiles - 1) / Blocks + 1 < Stages && (Blocks == 1 || all_come(come));
#endif
    }
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    const bool together = all_together, whole = together;
#else
    const bool together = false, whole = true;
#endif
    const bool alone = Blocks == 1 || !together;
    const int blocks = together ? Blocks : 1, teams = gridDim.x / blocks, rank = blockIdx.x % blocks;
    const Index first = (Index)(rank / tiles) * teams + blockIdx.x / blocks;
    Walk<Index> at = {blockIdx.x / blocks < teams ? first : rows, rows, rank % tiles, tiles, teams, blocks / tiles * teams,
                      blocks % tiles};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % Threads;
    Turn<Stages> turn;
    Turn<AHEAD> row_turn;
    if (warp < Warps) {
        for (; at.more(); row_turn.next()) {
            const Index row = at.row;
            await(known.full[row_turn.slot], row_turn.parity);
            const State state = of_rows[row_turn.slot];
            arrive(known.empty[row_turn.slot]);
            const auto write_tile = write(row, state);
            do {
                if (together) {
                    await(ring.full[turn.slot], turn.parity);
                }
                write_tile(at.tile, turn.slot, lane, whole);
                arrive(ring.empty[turn.slot]);
                turn.next();
                at.next();
            } while (at.row == row);
        }
    } else if (warp < 2 * Warps) {
        for (; at.more(); row_turn.next()) {
            const Index row = at.row;
            const auto reduce_tile = reduce(row);
            State state = start;
            do {
                if (together) {
                    await(ring.full[turn.slot], turn.parity);
                }
                reduce_tile(at.tile, turn.slot, lane, whole, state);
                arrive(ring.empty[turn.slot]);
                turn.next();
                at.next();
            } while (at.row == row);
            across_warp<32>(state);
            await(parts.empty[row_turn.slot], row_turn.parity ^ 1);
            if (lane % 32 == 0) {
                of_warps[row_turn.slot][lane / 32] = state;
            }
            arrive(parts.full[row_turn.slot]);
        }
    } else if (warp == 2 * Warps) {
        for (; together && threadIdx.x % 32 == 0 && at.more(); at.next(), turn.next()) {
            await(ring.empty[turn.slot], turn.parity ^ 1);
            copy(at.row, at.tile, turn.slot, ring.full[turn.slot]);
            asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}"
                         ::"r"((unsigned)__cvta_generic_to_shared(&ring.full[turn.slot])) : "memory");
        }
    } else if (warp == 2 * Warps + 1) {
        for (; at.more(); at.next_row(), row_turn.next()) {
            await(parts.full[row_turn.slot], row_turn.parity);
            State found = threadIdx.x % 32 < Warps ? of_warps[row_turn.slot][threadIdx.x % 32] : start;
            across_warp<Warps>(found);
            if (alone) {
                await(known.empty[row_turn.slot], row_turn.parity ^ 1);
            }
            if (threadIdx.x % 32 == 0 && alone) {
                of_rows[row_turn.slot] = found;
            } else if (threadIdx.x % 32 == 0) {
                tell(packets + (at.row * Blocks + at.tile % blocks) * Count, found);
            }
            arrive(parts.empty[row_turn.slot]);
            if (alone) {
                arrive(known.full[row_turn.slot]);
            }
        }
    } else if (!alone) {
        for (; at.more(); at.next_row(), row_turn.next()) {
            State found = start;
            hear<Blocks>(found, packets + at.row * Blocks * Count, min(blocks, tiles));
            await(known.empty[row_turn.slot], row_turn.parity ^ 1);
            if (threadIdx.x % 32 == 0) {
                of_rows[row_turn.slot] = found;
            }
            arrive(known.full[row_turn.slot]);
        }
    }
}

// ---- Neighbouring rows, whose elements are far apart.

// In each of Threads + 32 threads of a block: the first ones reduce Each rows, and a warp brings what the block has of a line to a ring of Stages
// places. A row has an element in each of `length` lines of `width` elements, and `count` times so many rows follow each other.
// `add(state, element, row, k)` adds element k of a row to a state, and `store(row, state)` stores it. Single numbers are those of 16 elements,
// merged: sums are more precise.
template <int Threads, int Each, int Stages, typename State, typename T, typename Index, class Add, class Store>
__device__ __forceinline__ void pass_columns(const T* x, Index count, int length, Index width, const State start, Add add, Store store) {
    constexpr int N = 16 / sizeof(T), Tile = Threads * Each + N;
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ Queue<Stages> places;
    const Index chunks = (width + Threads * Each - 1) / (Threads * Each), number = blockIdx.x / chunks;
    const Index piece = min((Index)(Threads * Each), (width + chunks * N - 1) / (chunks * N) * N);
    const Index begin = min(blockIdx.x % chunks * piece, width), first_row = number * width + begin;
    const int columns = min(piece, width - begin);
    const T* line = x + (long long)number * length * width + begin;
    const T* end = x + (long long)count * length * width;
    const bool copied = aligned<N>(x);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        places.init(1, Threads / 32);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
#endif
    Turn<Stages> turn;
    if (threadIdx.x >= Threads) {
#if __CUDA_ARCH__ >= 900
        for (int k = 0; copied && threadIdx.x == Threads && k < length; ++k, line += width, turn.next()) {
            const int shift = reinterpret_cast<size_t>(line) / sizeof(T) % N;
            await(places.empty[turn.slot], turn.parity ^ 1);
            copy_tile<Tile, N>(reinterpret_cast<T*>(ring) + turn.slot * Tile, end, line, -shift, columns, places.full[turn.slot]);
            asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}"
                         ::"r"((unsigned)__cvta_generic_to_shared(&places.full[turn.slot])) : "memory");
        }
#endif
        return;
    }
    State of_rows[Each];
    #pragma unroll
    for (int e = 0; e < Each; ++e) {
        of_rows[e] = start;
    }
    const auto reduce = [&](State (&states)[Each], int first, int last) {
        for (int k = first; k < last; ++k, line += width) {
            const auto take = [&](const T* from) {
                T values[Each];
                #pragma unroll
                for (int tests = 0; tests < 2; ++tests) {
                    if (tests == (columns <= Threads * (Each - 1))) {
                        #pragma unroll
                        for (int e = 0; e < Each; ++e) {
                            if ((!tests && e + 1 < Each) || e * Threads + threadIdx.x < columns) {
                                values[e] = from[e * Threads + threadIdx.x];
                            }
                        }
                        #pragma unroll
                        for (int e = 0; e < Each; ++e) {
                            if ((!tests && e + 1 < Each) || e * Threads + threadIdx.x < columns) {
                                add(states[e], values[e], first_row + e * Threads + threadIdx.x, k);
                            }
                        }
                    }
                }
            };
#if __CUDA_ARCH__ >= 900
            if (copied) {
                await(places.full[turn.slot], turn.parity);
            }
            if (copied && end - line >= columns + N) {
                take(reinterpret_cast<const T*>(ring) + turn.slot * Tile + reinterpret_cast<size_t>(line) / sizeof(T) % N);
            } else {
                take(line);
            }
            if (copied) {
                arrive(places.empty[turn.slot]);
                turn.next();
            }
#else
            take(line);
#endif
        }
    };
    if constexpr (sizeof(State) == 4) {
        for (int first = 0; first < length; first += 16) {
            State of_tile[Each];
            #pragma unroll
            for (int e = 0; e < Each; ++e) {
                of_tile[e] = start;
            }
            reduce(of_tile, first, min(first + 16, length));
            #pragma unroll
            for (int e = 0; e < Each; ++e) {
                merge(of_rows[e], of_tile[e]);
            }
        }
    } else {
        reduce(of_rows, 0, length);
    }
    #pragma unroll
    for (int e = 0; e < Each; ++e) {
        if (e * Threads + threadIdx.x < columns) {
            store(first_row + e * Threads + threadIdx.x, of_rows[e]);
        }
    }
}

// Merges a state of each of the Lanes threads of N columns, for all of them.
template <int Columns, int Lanes, int N, typename State>
__device__ __forceinline__ void across_neighbours(State (&states)[N]) {
    constexpr int Folded = Columns < 32 ? 32 / Columns : 1, Parts = Lanes / Folded;
    #pragma unroll
    for (int v = 0; v < N; ++v) {
        #pragma unroll
        for (int apart = 16; apart >= Columns; apart /= 2) {
            merge(states[v], of_lane(states[v], apart));
        }
    }
    if (Parts > 1) {
        __shared__ State of_parts[Parts][N][Columns];
        const int column = threadIdx.x % Columns, lane = threadIdx.x / Columns;
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            if (lane % Folded == 0) {
                of_parts[lane / Folded][v][column] = states[v];
            }
        }
        __syncthreads();
        for (int p = threadIdx.x; p < N * Columns; p += Columns * Lanes) {
            State found = of_parts[0][p / Columns][p % Columns];
            #pragma unroll
            for (int part = 1; part < Parts; ++part) {
                merge(found, of_parts[part][p / Columns][p % Columns]);
            }
            of_parts[0][p / Columns][p % Columns] = found;
        }
        __syncthreads();
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            states[v] = of_parts[0][v][column];
        }
    }
}

// In each of Columns * Lanes threads of a block: N rows, of each of which registers hold Items elements. A row has an element in each of `length`
// lines of `width` elements; one of more elements than the block holds is read twice. Neighbours are loaded and stored at once where all are aligned.
// `reduce(row, first, tiles, state)` adds elements first, first + Lanes, ... of a row to a state, and
// `write(row, first, tiles, state, results)` says what they lead to.
template <int Columns, int Lanes, int Items, int N, typename State, typename T, int Leaves, typename Out, typename Index, class Reduce, class Write>
__device__ __forceinline__ void pass_neighbours(const T* const (&leaves)[Leaves], Out* out, int length, Index width, const State start, Reduce reduce,
        Write write) {
    const Index chunks = (width + Columns * N - 1) / (Columns * N), number = blockIdx.x / chunks;
    const Index begin = blockIdx.x % chunks * (Columns * N), row = number * width + begin;
    const int column = threadIdx.x % Columns, lane = threadIdx.x / Columns, columns = min((Index)(Columns * N), width - begin);
    const long long base = (long long)number * length * width + begin;
    if (length > Lanes * Items) {
        #pragma unroll 1
        for (int at = column; at < Columns * N; at += Columns) {
            State state[] = {start};
            T tile[Leaves][Items];
            const auto take = [&](int first) {
                #pragma unroll
                for (int j = 0; j < Items; ++j) {
                    #pragma unroll
                    for (int l = 0; l < Leaves; ++l) {
                        if (first + j * Lanes < length && at < columns) {
                            tile[l][j] = leaves[l][base + at + (Index)(first + j * Lanes) * width];
                        }
                    }
                }
            };
            for (int first = lane; first < length && at < columns; first += Lanes * Items) {
                take(first);
                reduce(row + at, first, tile, state[0]);
            }
            __syncthreads();
            across_neighbours<Columns, Lanes>(state);
            for (int first = lane; first < length && at < columns; first += Lanes * Items) {
                Out results[Items];
                take(first);
                write(row + at, first, tile, state[0], results);
                #pragma unroll
                for (int j = 0; j < Items; ++j) {
                    if (first + j * Lanes < length) {
                        out[base + at + (Index)(first + j * Lanes) * width] = results[j];
                    }
                }
            }
        }
        return;
    }
    bool whole = columns == Columns * N && width % N == 0 && aligned<N>(out);
    #pragma unroll
    for (int l = 0; l < Leaves; ++l) {
        whole = whole && aligned<N>(leaves[l]);
    }
    const int at = whole ? column * N : column, apart = whole ? 1 : Columns;
    const long long offset = base + at + (Index)lane * width, step = (long long)Lanes * width;
    T tiles[N][Leaves][Items];
    #pragma unroll
    for (int l = 0; l < Leaves; ++l) {
        const T* from = leaves[l] + offset;
        #pragma unroll
        for (int j = 0; j < Items; ++j, from += step) {
            if (lane + j * Lanes < length && whole) {
                const Vector<T, N> found = *reinterpret_cast<const Vector<T, N>*>(from);
                #pragma unroll
                for (int v = 0; v < N; ++v) {
                    tiles[v][l][j] = found.of[v];
                }
            } else if (lane + j * Lanes < length) {
                #pragma unroll
                for (int v = 0; v < N; ++v) {
                    if (at + v * Columns < columns) {
                        tiles[v][l][j] = from[v * Columns];
                    }
                }
            }
        }
    }
    State states[N];
    #pragma unroll
    for (int v = 0; v < N; ++v) {
        states[v] = start;
        if (whole || at + v * Columns < columns) {
            reduce(row + at + v * apart, lane, tiles[v], states[v]);
        }
    }
    across_neighbours<Columns, Lanes>(states);
    Out results[N][Items];
    #pragma unroll
    for (int v = 0; v < N; ++v) {
        if (whole || at + v * Columns < columns) {
            write(row + at + v * apart, lane, tiles[v], states[v], results[v]);
        }
    }
    Out* to = out + offset;
    #pragma unroll
    for (int j = 0; j < Items; ++j, to += step) {
        if (lane + j * Lanes < length && whole) {
            Vector<Out, N> found;
            #pragma unroll
            for (int v = 0; v < N; ++v) {
                found.of[v] = results[v][j];
            }
            store_vector(to, found);
        } else if (lane + j * Lanes < length) {
            #pragma unroll
            for (int v = 0; v < N; ++v) {
                if (at + v * Columns < columns) {
                    to[v * Columns] = results[v][j];
                }
            }
        }
    }
}
