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

// Stores the elements from k on of a run of `length`, without those outside of it.
template <typename T, int N, typename Index>
__device__ __forceinline__ void store(T* run, const T (&values)[N], Index k, Index length, bool whole = false) {
    if (whole && k + N > length) {
        return;
    }
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
// `before` is that of earlier tiles, and then that of this one too.
template <typename Op, bool Reverse, int Rows, int Threads, typename T, int Items, int N>
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
        for (int v = 0; v < N; ++v) {
            values[j][v] = Op::of(mine, values[j][v]);
        }
    }
    __syncthreads();
}

// 2^64 / by, rounded up; 0 for 1, whose quotients need none.
__device__ __forceinline__ unsigned long long inverse_of(int by) {
    return 0xffffffffffffffffull / by + 1;
}

// k / by for k >= 0, without a division: the error of the inverse is too small to tell.
__device__ __forceinline__ int quotient(int k, unsigned long long inverse) {
    return inverse == 0 ? k : (int)__umul64hi((unsigned)k, inverse);
}
