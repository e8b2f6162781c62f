// Convolutions on the tensor cores, for NVRTC and nvcc, sm_80 and later. docs/blocks.md describes them.
//
// Factors of fp32 are rounded to TF32, those of 16 bits stay as they are, sums are fp32, as PyTorch does by default. Where a geometry is EXACT, factors are sums of two such
// numbers, and three products have an error near that of fp32. A block computes ROWS output channels, 64 or 128, of
// OF_BLOCK / ROWS places of the result, by one or two warp groups. Places are numbered along strips of a few columns: an input strip with its halo is loaded once for all taps, and
// a tap is then an offset within it.
//
// Along an axis, place q of the result depends on inputs step * (q + delta) + origin. A *section* has one origin and the taps'
// deltas, none of them negative: strides give a section for each residue of the taps, and each tap of depth is one. The results
// of a transposed convolution fall into *phases*, their residues by the stride, with taps of their own; those of STACK columns beside
// each other are computed in one block, in rows beside each other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CONVOLUTIONS_WGMMA 1
#else
#define CONVOLUTIONS_WGMMA 0
#endif

namespace convolutions {

constexpr int OF_BLOCK = 64 * 256;
constexpr int PRODUCERS = 64;

// A step has 32 bytes of a line, in two chunks of so many TERMS; WORDS are those of 4 bytes.
constexpr int WORDS = 8;
template <class T>
constexpr int TERMS = 16 / sizeof(T);
template <class T>
constexpr int STEP = 2 * TERMS<T>;
// What 16-bit numbers are loaded as: cuda_bf16.h's own loads are in branches.
template <class T>
struct WordOf {
    using Type = unsigned short;
};
template <>
struct WordOf<float> {
    using Type = float;
};
template <class T>
using Word = typename WordOf<T>::Type;

template <class T>
__device__ __forceinline__ Word<T> load_word(const T* at) {
    return __ldg(reinterpret_cast<const Word<T>*>(at));
}

template <class T>
__device__ __forceinline__ float load_number(const T* at) {
    const Word<T> found = load_word(at);
    return (float)*reinterpret_cast<const T*>(&found);
}

template <class T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<__nv_bfloat16> = true;

struct Section {
    int depth, row, column, first, taps;
};

// `weights` are those of the phases in a block, -1 for none.
template <int STACK>
struct Tap {
    int row, column, section, weights[STACK];
};

// Extents at run time. `groups` have `channels` inputs and `rows` outputs each; `places` are those of a phase. What `splits` parts of the
// channels give is stored as images of their own.
struct Sizes {
    int images, groups, channels, rows;
    int input[3], output[3], places[3];
    int splits = 1;
};

// A warp has 16 rows: OF_WARP output channels, each of which has the STACK phases of a block; others are empty.
template <int STACK, int ROWS = 16>
constexpr int OUTPUTS_OF = ROWS / 16 * (16 / STACK);

// The terms of a tap: channels, each of which is FOLD of them, columns of the kernel that are FOLD_APART from each other.
template <class Geometry>
__device__ __forceinline__ int terms_of(const Sizes& sizes) {
    return sizes.channels * Geometry::FOLD;
}

// What a block needs for a geometry, which has EXACT, FOLD, FOLD_APART, TAPS, PHASES, STACK, MOST_TAPS (of a section), HALO_ROWS, HALO_COLUMNS, STEPS (of
// the input for a place) and OUT (of the result for a place). Strips have equal numbers of columns, at most STRIP; a stage has DEEP steps of channels.
template <class Geometry, int ROWS, int STRIP, int DEEP>
struct Shape {
    static_assert(ROWS == 64 || ROWS == 128, "Tensor cores multiply 64 rows");
    static constexpr int COLUMNS = OF_BLOCK / ROWS;
    static constexpr int LINES =
        (COLUMNS + Geometry::HALO_ROWS * (STRIP + Geometry::HALO_COLUMNS) + Geometry::HALO_COLUMNS + 31) / 32 * 32;
    static constexpr int PARTS = Geometry::EXACT ? 2 : 1, INPUT = PARTS * DEEP * LINES * WORDS * 4;
    static constexpr int WEIGHTS = ROWS * WORDS * 4, STAGE = INPUT + Geometry::MOST_TAPS * PARTS * DEEP * WEIGHTS;
};

// What a thread's warp group, of GROUPS, computes of a block.
template <int ROWS, int GROUPS>
struct Share {
    static_assert(GROUPS == 1 || GROUPS == 2, "A block has one or two warp groups that multiply");
    static constexpr bool OF_ROWS = GROUPS == 2 && ROWS == 128, OF_PLACES = GROUPS == 2 && ROWS == 64;
    static constexpr int BLOCKS = ROWS == 128 && GROUPS == 1 ? 2 : 1, PLACES = OF_BLOCK / ROWS / (OF_PLACES ? 2 : 1), SUMS = PLACES / 2;

    __device__ __forceinline__ static int row() {
        return OF_ROWS ? threadIdx.x / 128 * 64 : 0;
    }

    __device__ __forceinline__ static int place() {
        return OF_PLACES ? threadIdx.x / 128 * PLACES : 0;
    }
};

__device__ __forceinline__ int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

__device__ __forceinline__ float rounded(float x) {
    unsigned found;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
    return __uint_as_float(found);
}

// What is left of a number beside its rounded one, for finite numbers.
__device__ __forceinline__ float left_of(float x, float high) {
    return fabsf(high) <= 3.0e38f ? rounded(x - high) : 0.0f;
}

// ---- Functions ------------------------------------------------------------------------------------------------------------
// With MATH = 1, by the hardware's approximations and without branches: absolute errors are below 5e-7 (the exponential's is relative),
// as small as those of the sums that they are taken of. Others are CUDA's.

__device__ __forceinline__ float power_of_two(float x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}

__device__ __forceinline__ float inverse(float x) {
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}

template <int MATH>
__device__ __forceinline__ float exp(float x) {
    return MATH == 1 ? power_of_two(x * 1.4426950408889634f) : expf(x);
}

template <int MATH>
__device__ __forceinline__ float log(float x) {
    return MATH == 1 ? __logf(x) : logf(x);
}

template <int MATH>
__device__ __forceinline__ float log1p(float x) {
    return MATH == 1 ? __logf(1.0f + x) : log1pf(x);
}

template <int MATH>
__device__ __forceinline__ float tanh(float x) {
    if (MATH != 1) {
        return tanhf(x);
    }
    const float square = x * x;  // of small numbers the difference from 1 would lose digits
    return square < 0.01f ? x * fmaf(square, fmaf(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f)
                          : fmaf(-2.0f, inverse(1.0f + power_of_two(x * 2.8853900817779268f)), 1.0f);
}

// Abramowitz and Stegun, 7.1.26.
template <int MATH>
__device__ __forceinline__ float erf(float x) {
    if (MATH != 1) {
        return erff(x);
    }
    const float t = inverse(fmaf(0.3275911f, fabsf(x), 1.0f));
    float sum = fmaf(t, 1.061405429f, -1.453152027f);
    sum = fmaf(t, sum, 1.421413741f);
    sum = fmaf(t, sum, -0.284496736f);
    sum = fmaf(t, sum, 0.254829592f) * t;
    return copysignf(fmaf(-sum, power_of_two(x * x * -1.4426950408889634f), 1.0f), x);
}

// x (1 + erf(x / sqrt(2))) / 2, by the same series.
template <int MATH>
__device__ __forceinline__ float gelu(float x) {
    if (MATH != 1) {
        return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    }
    const float t = inverse(fmaf(0.2316419f, fabsf(x), 1.0f));
    float sum = fmaf(t, 0.5307027145f, -0.7265760135f);
    sum = fmaf(t, sum, 0.7107068705f);
    sum = fmaf(t, sum, -0.142248368f);
    sum = fmaf(t, sum, 0.127414796f) * t;
    return fmaf(-fabsf(x), sum * power_of_two(x * x * -0.7213475204444817f), fmaxf(x, 0.0f));
}

// What numbers are divided by, with a relative error of 1.2e-7 as a product.
struct Inverse {
    float of;
};

__device__ __forceinline__ float operator/(float x, Inverse by) {
    return x * by.of;
}

template <int MATH>
__device__ __forceinline__ auto divisor(float by) {
    if constexpr (MATH == 1) {
        return Inverse{1.0f / by};
    } else {
        return by;
    }
}

// ---- Weights --------------------------------------------------------------------------------------------------------------
// Packed for a group and ROWS outputs: by section, stage, tap, part and step, 2 x ROWS chunks as they are in shared memory.

// Pack one number, the i-th; value(row, channel, tap) gives those of group i / weights_of_group.
template <class Geometry, int ROWS, int DEEP, class T, class Value>
__device__ __forceinline__ void pack_weights(T* to, long long i, const Sizes& sizes,
        const Tap<Geometry::STACK>* taps, const Section* sections, Value value) {
    constexpr int STACK = Geometry::STACK, OWN = OUTPUTS_OF<STACK, ROWS>, CHUNK = TERMS<T>, ALL = DEEP * STEP<T> * ROWS;
    const int stages = ceil_div(terms_of<Geometry>(sizes), DEEP * STEP<T>), blocks = ceil_div(sizes.rows, OWN);
    const long long all = (long long)sizes.groups * blocks * Geometry::TAPS * stages * ALL;
    if (i >= all) {
        return;
    }
    const int k = i % CHUNK, line = i / CHUNK % ROWS, chunk = i / (CHUNK * ROWS) % (2 * DEEP);
    long long rest = i / ALL;
    const int stage = rest % stages;
    rest /= stages;
    const Tap<Geometry::STACK>& tap = taps[rest % Geometry::TAPS];
    const Section section = sections[tap.section];
    const int block = rest / Geometry::TAPS % blocks, group = rest / Geometry::TAPS / blocks;
    const int number = rest % Geometry::TAPS - section.first, channel = (stage * DEEP * 2 + chunk) * CHUNK + k;
    const int of_warp = line % 16 / STACK, row = block * OWN + line / 16 * OUTPUTS_OF<STACK> + of_warp;
    const long long unit =
        ((long long)group * blocks + block) * Geometry::TAPS * stages + section.first * stages + stage * section.taps + number;
    const int weight = of_warp < OUTPUTS_OF<STACK> && row < sizes.rows && channel < terms_of<Geometry>(sizes) ? tap.weights[line % 16 % STACK] : -1;
    const float full = weight >= 0 ? value(group, row, channel / Geometry::FOLD, weight + channel % Geometry::FOLD) : 0.0f;
    T* at = to + unit * ((Geometry::EXACT ? 2 : 1) * ALL) + (chunk * ROWS + line) * CHUNK + k;
    if constexpr (sizeof(T) == 2) {
        *at = T(full);
    } else {
        *at = rounded(full);
        if (Geometry::EXACT) {
            at[ALL] = left_of(full, *at);
        }
    }
}

// ---- Places ---------------------------------------------------------------------------------------------------------------

struct Place {
    int column, row, depth, image;
};

// Divides numbers below 2^20.
struct Divider {
    int by;
    float inverse;

    // Larger than the inverse by more than all errors of rounding.
    __device__ __forceinline__ Divider(int by) : by(by), inverse(1.0000005f * convolutions::inverse(by)) {}

    // The quotient; the rest is left in x.
    __device__ __forceinline__ int divide(int& x) const {
        const int above = __float2int_rz(__int2float_rn(x) * inverse), rest = x - above * by;
        x = rest < 0 ? rest + by : rest;
        return rest < 0 ? above - 1 : above;
    }
};

// What is the same for all parts of the work, which a block computes once.
struct Layout {
    int width, strips, blocks, own;  // columns of a strip, strips, blocks of rows, parts of an image's strip
    unsigned long long inverses[6];

    // The quotient; the rest is left in x. `which` is the number of the divisor.
    __device__ __forceinline__ int divide(int which, int by, int& x) const {
        const int found = by == 1 ? x : (int)__umul64hi((unsigned)x, inverses[which]);
        x -= found * by;
        return found;
    }
};

template <class Geometry, int ROWS, int STRIP, int VECTOR>
__device__ __forceinline__ void lay_out(Layout& layout, const Sizes& sizes) {
    const int strips = ceil_div(sizes.places[2], STRIP), width = min(ceil_div(ceil_div(sizes.places[2], strips), VECTOR) * VECTOR, STRIP);
    const int blocks = ceil_div(sizes.rows, OUTPUTS_OF<Geometry::STACK, ROWS>), across = ceil_div(sizes.places[2], width);
    const int pitch = width + Geometry::HALO_COLUMNS, rows = sizes.places[1] + Geometry::HALO_ROWS;
    const int own = ceil_div(sizes.places[0] * rows * pitch, OF_BLOCK / ROWS);
    const int divisors[] = {blocks, sizes.groups * sizes.splits, across, own, pitch, rows};
    if (threadIdx.x == 0) {
        layout.width = width, layout.strips = across, layout.blocks = blocks, layout.own = own;
    }
    // Each by a thread of its own, as divisions take long.
    int divisor = divisors[0];
    #pragma unroll
    for (int i = 1; i < 6; ++i) {
        divisor = threadIdx.x == i ? divisors[i] : divisor;
    }
    if (threadIdx.x < 6) {
        layout.inverses[threadIdx.x] = ~0ull / divisor + 1;
    }
}

// The part of the work that a block has. The places of a strip are numbered: columns with the halo, rows with theirs, depths,
// images; `first` is the first of them.
template <class Geometry, int ROWS, int STRIP>
struct Part {
    int group, split, block, phase, strip, width, image, tile;
    Divider pitch, rows, depths;
    Place first;

    __device__ __forceinline__ Part(const Sizes& sizes, const Layout& layout, int number)
        : width(layout.width), pitch(width + Geometry::HALO_COLUMNS), rows(sizes.places[1] + Geometry::HALO_ROWS),
          depths(sizes.places[0]) {
        int above = layout.divide(0, layout.blocks, number);
        block = number;
        number = above / Geometry::PHASES;
        phase = above % Geometry::PHASES;
        above = layout.divide(1, sizes.groups * sizes.splits, number);
        group = number / sizes.splits, split = number % sizes.splits;
        number = layout.divide(2, layout.strips, above);
        strip = above * width;
        image = Geometry::BY_IMAGE ? layout.divide(3, layout.own, number) : 0;
        tile = number;
        number *= OF_BLOCK / ROWS;
        int line = layout.divide(4, pitch.by, number), plane = layout.divide(5, rows.by, line);
        first = {number, line, plane, image};
        if (depths.by == 1) {
            first.depth = 0, first.image += plane;
        } else {
            first.depth = plane % depths.by, first.image += plane / depths.by;
        }
    }

    __device__ __forceinline__ static int count(const Sizes& sizes, const Layout& layout) {
        const int lines = sizes.images * sizes.places[0] * (sizes.places[1] + Geometry::HALO_ROWS);
        const int tiles = Geometry::BY_IMAGE ? sizes.images * layout.own
            : ceil_div(lines * (layout.width + Geometry::HALO_COLUMNS), OF_BLOCK / ROWS);
        return tiles * layout.strips * layout.blocks * sizes.groups * sizes.splits * Geometry::PHASES;
    }

    // The n-th place.
    __device__ __forceinline__ Place place(int n) const {
        Place place = first;
        place.column += n;
        place.row += pitch.divide(place.column);
        place.depth += rows.divide(place.row);
        place.image += depths.divide(place.depth);
        return place;
    }
};

// The stages that a part of the work has, of TERMS terms each.
template <class Geometry, int TERMS>
struct Stages {
    int first, end;

    template <class Part>
    __device__ __forceinline__ Stages(const Part& part, const Sizes& sizes) {
        const int all = ceil_div(terms_of<Geometry>(sizes), TERMS), each = ceil_div(all, sizes.splits);
        first = part.split * each, end = min(first + each, all);
    }
};

// The place in the result of a part's n-th place; that of its first place if there is none.
struct At {
    int image, depth, row, column;
    bool inside;
};

template <class Geometry, class Part>
__device__ __forceinline__ At result_at(const Part& part, const Sizes& sizes, int n, int of_stack) {
    // nvcc takes no element of a constexpr array in other expressions.
    constexpr int STACK = Geometry::STACK, DEPTHS = Geometry::OUT[0], ROWS = Geometry::OUT[1], COLUMNS = Geometry::OUT[2];
    constexpr int ACROSS = COLUMNS / STACK;
    const Place place = part.place(n);
    At at;
    at.image = place.image;
    at.depth = place.depth * DEPTHS + part.phase / (ROWS * ACROSS);
    at.row = place.row * ROWS + part.phase / ACROSS % ROWS;
    at.column = (part.strip + place.column) * COLUMNS + part.phase % ACROSS + of_stack;
    at.inside = (Geometry::BY_IMAGE ? place.image == part.image : place.image < sizes.images) && place.row < sizes.places[1]
        && place.column < part.width && at.depth < sizes.output[0] && at.row < sizes.output[1] && at.column < sizes.output[2];
    if (!at.inside) {
        at.image = at.depth = at.row = at.column = 0;
    }
    return at;
}

// ---- Inputs ---------------------------------------------------------------------------------------------------------------

// Loads stages by WARPS warps, of which this is number `warp`: a chunk of channels of a line at a time, as lines of 16 bytes.
template <class T, class Geometry, class Shape, class Part, int DEEP, int WARPS>
struct Loader {
    static constexpr int GROUPS = Shape::LINES / 32, APART = WARPS / 2, OWN = (GROUPS + APART - 1) / APART;
    static constexpr int MOST = 56 / TERMS<T>, HALF = (DEEP * OWN + 1) / 2;
    static constexpr int BATCH = DEEP * OWN <= MOST ? DEEP * OWN : HALF <= MOST ? HALF : MOST - MOST / 7;

    const T* input;
    const Sizes& sizes;
    const Part& part;
    int half, way, lane, size, whole;
    int offsets[OWN], columns[OWN];

    __device__ __forceinline__ Loader(const T* input, const Sizes& sizes, const Part& part, int warp)
        : input(input), sizes(sizes), part(part), half(warp % 2), way(warp / 2), lane(threadIdx.x & 31) {
        size = sizes.input[0] * sizes.input[1] * sizes.input[2];
        whole = size * sizes.channels * sizes.groups;
        this->input += (long long)part.first.image * whole + (long long)part.group * sizes.channels * size;
    }

    __device__ __forceinline__ void begin(const Section& section) {
        #pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const Place place = part.place(lane + 32 * (way + i * APART));
            const int depth = place.depth * Geometry::STEPS[0] + section.depth;
            const int row = place.row * Geometry::STEPS[1] + section.row;
            const int column = (part.strip + place.column) * Geometry::STEPS[2] + section.column;
            const bool inside = place.image < sizes.images && depth >= 0 && depth < sizes.input[0] && row >= 0
                && row < sizes.input[1] && (Geometry::FOLD > 1 || (column >= 0 && column < sizes.input[2]));
            columns[i] = inside ? column : -1 << 20;
            offsets[i] = inside
                ? (place.image - part.first.image) * whole + (depth * sizes.input[1] + row) * sizes.input[2] + (Geometry::FOLD > 1 ? 0 : column) : -1;
        }
    }

    // Fetch a batch of a stage. So that there are no branches, what is outside of the input is of its first place.
    template <bool WHOLE>
    __device__ __forceinline__ void fetch(Word<T> (&values)[BATCH][TERMS<T>], int from, int channel) const {
        const T* planes[TERMS<T>];
        #pragma unroll
        for (int j = 0; j < BATCH && from + j < DEEP * OWN; ++j) {
            const int first = channel + (from + j) / OWN * STEP<T> + half * TERMS<T>;
            const unsigned offset = max(offsets[(from + j) % OWN], 0);
            #pragma unroll
            for (int k = 0; k < TERMS<T>; ++k) {
                if constexpr (Geometry::FOLD > 1) {
                    // Places that don't exist are far to the left.
                    const int column = columns[(from + j) % OWN] + (first + k) % Geometry::FOLD * Geometry::FOLD_APART;
                    const bool inside = (unsigned)column < (unsigned)sizes.input[2] && (WHOLE || first + k < terms_of<Geometry>(sizes));
                    const Word<T> found = load_word(input + (inside ? (long long)((first + k) / Geometry::FOLD) * size + offset + column : 0));
                    values[j][k] = inside ? found : Word<T>(0);
                    continue;
                }
                if (j == 0 || (from + j) % OWN == 0) {
                    planes[k] = input + (long long)(first + k) * size;
                    // The compiler would begin each address with the input's.
                    asm volatile("" : "+l"(planes[k]));
                }
                values[j][k] = WHOLE || first + k < sizes.channels ? load_word(planes[k] + offset) : Word<T>(0);
            }
        }
    }

    // Load channels from `channel` on to `to`; ready() is called before anything is written.
    template <class Ready>
    __device__ __forceinline__ void load(float4* to, int channel, Ready ready) const {
        #pragma unroll
        for (int from = 0; from < DEEP * OWN; from += BATCH) {
            Word<T> values[BATCH][TERMS<T>];
            if (channel + DEEP * STEP<T> <= terms_of<Geometry>(sizes)) {
                fetch<true>(values, from, channel);
            } else {
                fetch<false>(values, from, channel);
            }
            if (from == 0) {
                ready();
            }
            #pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const int sub = (from + j) / OWN, i = (from + j) % OWN, group = way + i * APART;
                if (from + j < DEEP * OWN && group < GROUPS) {
                    float4* at = to + (sub * 2 + half) * Shape::LINES + group * 32 + lane;
                    const Word<T>* v = values[j];
                    const bool inside = offsets[i] >= 0;
                    if constexpr (sizeof(T) == 2) {
                        *reinterpret_cast<uint4*>(at) = make_uint4(inside ? v[0] | v[1] << 16 : 0, inside ? v[2] | v[3] << 16 : 0,
                            inside ? v[4] | v[5] << 16 : 0, inside ? v[6] | v[7] << 16 : 0);
                    } else {
                        const float x = inside ? v[0] : 0.0f, y = inside ? v[1] : 0.0f, z = inside ? v[2] : 0.0f;
                        const float w = inside ? v[3] : 0.0f;
                        const float4 high = {rounded(x), rounded(y), rounded(z), rounded(w)};
                        *at = high;
                        if (Geometry::EXACT) {
                            at[DEEP * 2 * Shape::LINES] =
                                make_float4(left_of(x, high.x), left_of(y, high.y), left_of(z, high.z), left_of(w, high.w));
                        }
                    }
                }
            }
        }
    }
};

// ---- Products -------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned shared_address(const void* at) {
    return (unsigned)__cvta_generic_to_shared(at);
}

#if CONVOLUTIONS_WGMMA
#define CONVOLUTIONS_F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
    "+f"(d[i + 6]), "+f"(d[i + 7])
#define CONVOLUTIONS_F32(i) CONVOLUTIONS_F8(i), CONVOLUTIONS_F8(i + 8), CONVOLUTIONS_F8(i + 16), CONVOLUTIONS_F8(i + 24)

#define CONVOLUTIONS_0_63 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CONVOLUTIONS_64_127 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CONVOLUTIONS_ISSUE_64(TYPES, TURNING) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128" TYPES " {" CONVOLUTIONS_0_63 "}, %64, %65, 1, 1, 1" TURNING ";" \
                 : CONVOLUTIONS_F32(0), CONVOLUTIONS_F32(32) : "l"(a), "l"(b))
#define CONVOLUTIONS_ISSUE_128(TYPES, TURNING) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256" TYPES " {" CONVOLUTIONS_0_63 ", " CONVOLUTIONS_64_127 \
                 "}, %128, %129, 1, 1, 1" TURNING ";" \
                 : CONVOLUTIONS_F32(0), CONVOLUTIONS_F32(32), CONVOLUTIONS_F32(64), CONVOLUTIONS_F32(96) : "l"(a), "l"(b))

// One product of a warp group: 64 x 128 or 256 sums of a step's terms in shared memory, which descriptors tell of.
#define CONVOLUTIONS_PRODUCT(COUNT) \
template <class T> \
__device__ __forceinline__ void wgmma(float (&d)[COUNT], unsigned long long a, unsigned long long b) { \
    if constexpr (sizeof(T) == 4) { \
        CONVOLUTIONS_ISSUE_##COUNT("k8.f32.tf32.tf32", ""); \
    } else if constexpr (IS_BF16<T>) { \
        CONVOLUTIONS_ISSUE_##COUNT("k16.f32.bf16.bf16", ", 0, 0"); \
    } else { \
        CONVOLUTIONS_ISSUE_##COUNT("k16.f32.f16.f16", ", 0, 0"); \
    } \
}
CONVOLUTIONS_PRODUCT(64)
CONVOLUTIONS_PRODUCT(128)

// The same by halves, for which the compiler allows fewer registers at launch.
template <class T>
__device__ __forceinline__ void wgmma_halves(float (&d)[128], unsigned long long a, unsigned long long b) {
    wgmma<T>(reinterpret_cast<float (&)[64]>(d[0]), a, b);
    wgmma<T>(reinterpret_cast<float (&)[64]>(d[64]), a, b + 128);
}

template <class T>
__device__ __forceinline__ void wgmma_halves(float (&d)[64], unsigned long long a, unsigned long long b) {
    wgmma<T>(d, a, b);
}

// Of chunks of terms, `apart` bytes from one to the next, each of lines of 16 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned start, unsigned apart) {
    return (unsigned long long)(start >> 4) | (unsigned long long)(apart >> 4) << 16 | 8ull << 32;
}

struct Barrier {
    unsigned at;

    __device__ __forceinline__ void init(int count) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
    }

    __device__ __forceinline__ void arrive() const {
        asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" ::"r"(at) : "memory");
    }

    __device__ __forceinline__ void wait(int parity) const {
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done:}"
                     ::"r"(at), "r"(parity) : "memory");
    }

    // Arrive, and expect a copy of so many bytes.
    __device__ __forceinline__ void copy(unsigned to, const void* from, int bytes) const {
        asm volatile("{.reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;}" ::"r"(at), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(to), "l"(from), "r"(bytes), "r"(at) : "memory");
    }
};
#else
#define CONVOLUTIONS_MMA(TYPES) \
    asm volatile("mma.sync.aligned.m16n8" TYPES ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (sizeof(T) == 4) {
        CONVOLUTIONS_MMA("k8.row.col.f32.tf32.tf32");
    } else if constexpr (IS_BF16<T>) {
        CONVOLUTIONS_MMA("k16.row.col.f32.bf16.bf16");
    } else {
        CONVOLUTIONS_MMA("k16.row.col.f32.f16.f16");
    }
}

// 64 x 2 SUMS sums, of chunks of terms: so many lines from one to the next.
template <class T, int SUMS>
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const unsigned* a, int rows, const unsigned* b, int lines) {
    const int line = threadIdx.x % 32 / 4, term = threadIdx.x % 4, row = (threadIdx.x / 32 % 4 * 16 + line) * 4 + term;
    const unsigned from_a[4] = {a[row], a[row + 32], a[row + rows * 4], a[row + rows * 4 + 32]};
    #pragma unroll
    for (int n = 0; n < 2 * SUMS; n += 8) {
        const int at = (n + line) * 4 + term;
        mma<T>(sum + n / 2, from_a, b[at], b[at + lines * 4]);
    }
}
#endif

// Bytes of shared memory by way of which a warp stores, and how far its rows are apart.
constexpr int APART = 40, STORING = 64 * APART * 4;

template <class T>
struct alignas(2 * sizeof(T)) Two {
    T first, second;
};

// What is stored of parts of the channels.
struct Sum {
    __device__ __forceinline__ float operator()(int, int, int, int, int, float sum) const { return sum; }
};

// Given as the index of results: of two columns the larger value is stored, or their mean. Columns are those of pairs.
template <bool LARGER, class Index>
struct Pairs {
    Index index;

    __device__ __forceinline__ auto operator()(int image, int channel, int depth, int row, int column) const {
        return index(image, channel, depth, row, column);
    }

    __device__ __forceinline__ static float joined(float x, float y) {
        return !LARGER ? 0.5f * (x + y) : y > x || y != y ? y : x;
    }
};

template <bool LARGER, class Index>
__device__ __forceinline__ Pairs<LARGER, Index> pairs(Index index) {
    return {index};
}

template <class Index>
constexpr bool JOINS = false;
template <bool LARGER, class Index>
constexpr bool JOINS<Pairs<LARGER, Index>> = true;

// Store a part of the result that the warps that multiply have the sums of; two columns at once where VECTOR is 2 and rows are even, since
// memory takes longer for parts of 32 bytes, which the ends of what a warp stores at once are.
template <class Geometry, int ROWS, int GROUPS, int VECTOR, class Part, int BLOCKS, int SUMS, class T, class Value, class Index>
__device__ __forceinline__ void store(T* to, unsigned char* shared, const float (&sum)[BLOCKS][SUMS], const Sizes& sizes,
        const Part& part, Value value, Index index) {
    constexpr int STACK = Geometry::STACK, OWN = OUTPUTS_OF<STACK, ROWS>;
    static_assert(GROUPS == 1 || 8 % STACK == 0, "Rows of a warp go through its shared memory all at once");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = part.group * sizes.rows + part.block * OWN, own = min(OWN, sizes.rows - part.block * OWN);
    // Rows that go through a warp's shared memory at a time.
    constexpr int AT_ONCE = 16 / GROUPS;
    float* mine = reinterpret_cast<float*>(shared + warp * (STORING / 4 / GROUPS));
    // An output channel is as far from the next one everywhere.
    const long long apart = index(0, first_row + 1, 0, 0, 0) - index(0, first_row, 0, 0, 0);
    // Where a thread's places are, all at once, since each takes long to find; -1 if there is none.
    constexpr int COUNT = SUMS / 16 * STACK;
    auto found_at = [&](int n, int of_stack) {
        At at = result_at<Geometry>(part, sizes, Share<ROWS, GROUPS>::place() + n, of_stack);
        at.image = at.inside ? at.image : -1;
        return at;
    };
    auto found = [&](int n) {
        const int i = lane + n % STACK * 32;
        return found_at(n / STACK * 32 + i / STACK, i % STACK);
    };
    constexpr bool IN_PAIRS = VECTOR == 2 && (STACK == 2 || (STACK == 1 && Geometry::OUT[2] == 1 && Geometry::HALO_COLUMNS % 2 == 0));
    static_assert(IN_PAIRS || !JOINS<Index>, "Pairs lie in different parts");
    if constexpr (IN_PAIRS) {
        const auto from = index(0, 0, 0, 0, 0);
        const bool is_even = JOINS<Index> || (((index(0, 1, 0, 0, 0) | index(0, 0, 1, 0, 0) | index(0, 0, 0, 1, 0)) & 1) == 0 && index(0, 0, 0, 0, 1) == 1
            && from == 0 && sizes.output[2] % 2 == 0 && (STACK == 2 || part.width % 2 == 0) && reinterpret_cast<size_t>(to) % sizeof(Two<T>) == 0);
        if (is_even) {
            // Some rows at a time, of 64 places, or of 32 with two columns each.
            constexpr int OF_PIECE = 64 / STACK, PITCH = OF_PIECE + 8, PIECES = SUMS * 2 / OF_PIECE, SHARES = GROUPS == 2 && STACK == 1 ? 2 : 1;
            constexpr int RUN = 8 / SHARES;
            static_assert(RUN * PITCH * 4 <= STORING / 4 / GROUPS, "Rows don't fit");
            decltype(index(0, 0, 0, 0, 0)) offsets[PIECES];
            At places[PIECES];
            #pragma unroll
            for (int n = 0; n < PIECES; ++n) {
                places[n] = found_at(n * OF_PIECE + lane * (2 / STACK), 0);
                const bool inside = places[n].image >= 0 && (!JOINS<Index> || places[n].column + 1 < sizes.output[2]);
                const int column = places[n].column / (JOINS<Index> ? 2 : 1);
                offsets[n] = inside ? index(places[n].image + part.split * sizes.images, first_row, places[n].depth, places[n].row, column) : -1;
            }
            #pragma unroll
            for (int number = 0; number < BLOCKS * PIECES * 16 / RUN; ++number) {
                const int past = number % (16 / RUN) * RUN, m = number / (16 / RUN) % BLOCKS, n = number / (16 / RUN) / BLOCKS;
                const int first = n * OF_PIECE;
                const int row = (Share<ROWS, GROUPS>::row() + m * 64 + warp % 4 * 16 + past) / STACK;
                if (__shfl_sync(0xffffffff, (int)(row >= own), 0)) {
                    continue;
                }
                __syncwarp();
                #pragma unroll
                for (int eight = 0; eight < OF_PIECE; eight += 8) {
                    const int at_sum = first / 2 + eight / 2 + past / 8 * 2;
                    if (lane / 4 / RUN == past % 8 / RUN) {
                        *reinterpret_cast<float2*>(mine + lane / 4 % RUN * PITCH + eight + lane % 4 * 2) =
                            make_float2(sum[m][at_sum], sum[m][at_sum + 1]);
                    }
                }
                __syncwarp();
                const At& place = places[n];
                T* at = to + (offsets[n] + row * apart);
                auto put = [&](int j) {
                    const float* found = mine + (STACK == 2 ? 2 * j * PITCH + lane : j * PITCH + 2 * lane);
                    const float2 two = STACK == 2 ? make_float2(found[0], found[PITCH]) : *reinterpret_cast<const float2*>(found);
                    const Two<T> both = {value(place.image, first_row + row + j, place.depth, place.row, place.column, two.x),
                        value(place.image, first_row + row + j, place.depth, place.row, place.column + 1, two.y)};
                    if constexpr (JOINS<Index>) {
                        *at = Index::joined(both.first, both.second);
                    } else {
                        *reinterpret_cast<Two<T>*>(at) = both;
                    }
                    at += apart;
                };
                if (offsets[n] >= 0 && row + RUN / STACK <= own) {
                    #pragma unroll
                    for (int j = 0; j < RUN / STACK; ++j) {
                        put(j);
                    }
                } else if (offsets[n] >= 0) {
                    #pragma unroll 1
                    for (int j = 0; j < min(RUN / STACK, own - row); ++j) {
                        put(j);
                    }
                }
            }
            return;
        }
    }
    // Of many, some at a time.
    decltype(index(0, 0, 0, 0, 0)) offsets[COUNT];
    auto find = [&](int from, int to) {
        #pragma unroll
        for (int n = from; n < to; ++n) {
            const At place = found(n);
            offsets[n] = place.image < 0 ? -1 : index(place.image + part.split * sizes.images, first_row, place.depth, place.row, place.column);
        }
    };
    constexpr bool ALL = STACK <= 4;
    if (ALL) {
        find(0, COUNT);
    }
    // By way of shared memory, so that threads that are neighbours store neighbours.
    #pragma unroll
    for (int part_of = 0; part_of < BLOCKS * SUMS / 16; ++part_of) {
        const int m = part_of % BLOCKS, first = part_of / BLOCKS * 32;
        const int row = (Share<ROWS, GROUPS>::row() / 16 + m * 4 + warp % 4) * OUTPUTS_OF<STACK>;
        if (!ALL && m == 0) {
            find(part_of / BLOCKS * STACK, (part_of / BLOCKS + 1) * STACK);
        }
        // The compiler has to see that a warp takes one way.
        if (__shfl_sync(0xffffffff, (int)(row >= own), 0)) {
            continue;
        }
        #pragma unroll
        for (int k = 0; k < STACK; ++k) {
            const int n = part_of / BLOCKS * STACK + k, i = lane + 32 * k;
            const At place = found(n);  // which most values don't depend on
            const float* from = mine + i % STACK * APART + i / STACK;
            T* at = to + (offsets[n] + row * apart);
            #pragma unroll
            for (int past = 0; past < 16; past += AT_ONCE) {
                // With one group all rows are there for every k.
                if (GROUPS == 2 || k == 0) {
                    __syncwarp();
                    #pragma unroll
                    for (int j = 0; j < AT_ONCE; j += 8) {
                        #pragma unroll
                        for (int four = 0; four < 16; four += 4) {
                            const int at_sum = first / 2 + four + (past + j) / 8 * 2;
                            *reinterpret_cast<float2*>(mine + (j + lane / 4) * APART + four * 2 + lane % 4 * 2) =
                                make_float2(sum[m][at_sum], sum[m][at_sum + 1]);
                        }
                    }
                    __syncwarp();
                }
                auto put = [&](int j) {
                    *at = value(place.image, first_row + row + past / STACK + j, place.depth, place.row, place.column, from[j * STACK * APART]);
                    at += apart;
                };
                if (offsets[n] >= 0 && row + 16 / STACK <= own) {
                    #pragma unroll
                    for (int j = 0; j < AT_ONCE / STACK; ++j) {
                        put(j);
                    }
                } else if (offsets[n] >= 0) {
                    #pragma unroll 1
                    for (int j = 0; j < min(AT_ONCE / STACK, own - row - past / STACK); ++j) {
                        put(j);
                    }
                }
            }
        }
    }
}

// ---- Reductions -----------------------------------------------------------------------------------------------------------

template <class State, int COUNT>
struct States {
    State of[COUNT];
};

// The part that a block computes in a turn. One that is to reduce all channels of its places, but has too many, computes them block
// by block, and all of them again in each pass.
struct Turn {
    bool several;
    int number, pass;

    __device__ __forceinline__ Turn(int turn, int blocks, int passes) {
        several = blocks > 1;
        number = (blockIdx.x + turn / (several ? blocks * passes : 1) * gridDim.x) * blocks + (several ? turn % blocks : 0);
        pass = several ? turn / blocks % passes : 0;
    }
};

// What a thread has of a part of the result: OWN channels of COUNT places, which the threads of some warps share.
template <class Geometry, int ROWS, int GROUPS, class Part, int BLOCKS, int SUMS, class T>
struct Places {
    using Mine = Share<ROWS, GROUPS>;
    static constexpr int STACK = Geometry::STACK;
    static constexpr int OWN_OF = 16 / STACK, OWN = BLOCKS * OWN_OF, COUNT = SUMS / 16 * STACK, WARPS = Mine::OF_ROWS ? 8 : 4;

    T* to;
    unsigned char* shared;
    const Sizes& sizes;
    const Layout& layout;
    const Part& part;
    const Turn& turn;
    unsigned char* states;
    float values[COUNT][OWN];

    __device__ __forceinline__ static int warp() { return threadIdx.x / 32 % WARPS; }

    __device__ __forceinline__ static void barrier() {
        asm volatile("bar.sync %0, %1;" ::"r"((int)threadIdx.x / (32 * WARPS) + 1), "n"(32 * WARPS) : "memory");
    }

    __device__ __forceinline__ At at(int n) const {
        const int i = threadIdx.x % 32 + n % STACK * 32;
        return result_at<Geometry>(part, sizes, Mine::place() + n / STACK * 32 + i / STACK, i % STACK);
    }

    // The channel of number j, and its row of the block's group.
    __device__ __forceinline__ int channel(int j) const { return part.group * sizes.rows + row(j); }

    __device__ __forceinline__ int row(int j) const {
        return part.block * (ROWS / STACK) + (Mine::row() + j / OWN_OF * 64 + threadIdx.x / 32 % 4 * 16) / STACK + j % OWN_OF;
    }

    // Turn the sums of a warp, so that a thread has the channels of a place, as value(image, channel, depth, row, column, sum).
    template <class Value>
    __device__ __forceinline__ void fill(const float (&sum)[BLOCKS][SUMS], Value value) {
        constexpr int AT_ONCE = 16 / GROUPS;
        const int lane = threadIdx.x % 32;
        float* mine = reinterpret_cast<float*>(shared + threadIdx.x / 32 * (STORING / 4 / GROUPS));
        barrier();
        #pragma unroll
        for (int number = 0; number < BLOCKS * SUMS / 16; ++number) {
            const int m = number % BLOCKS, first = number / BLOCKS * 16;
            #pragma unroll
            for (int past = 0; past < 16; past += AT_ONCE) {
                __syncwarp();
                #pragma unroll
                for (int j = 0; j < AT_ONCE; j += 8) {
                    #pragma unroll
                    for (int four = 0; four < 16; four += 4) {
                        const int from = first + four + (past + j) / 8 * 2;
                        *reinterpret_cast<float2*>(mine + (j + lane / 4) * APART + four * 2 + lane % 4 * 2) =
                            make_float2(sum[m][from], sum[m][from + 1]);
                    }
                }
                __syncwarp();
                #pragma unroll
                for (int k = 0; k < STACK; ++k) {
                    const int i = lane + 32 * k;
                    #pragma unroll
                    for (int j = 0; j < AT_ONCE / STACK; ++j) {
                        values[number / BLOCKS * STACK + k][m * OWN_OF + past / STACK + j] =
                            mine[(j * STACK + i % STACK) * APART + i / STACK];
                    }
                }
            }
        }
        each([&](int, const At& at, int channel, float& found, int) {
            found = value(at.image, channel, at.depth, at.row, at.column, found);
        });
    }

    // Calls use(number of the place, place, channel, value, number of the channel) for all of this thread's. There are no branches: instead of
    // places and channels that don't exist others are given, so that what is read of tensors is inside of them.
    template <class Use>
    __device__ __forceinline__ void each(Use use) {
        #pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const At found = at(n);
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                use(n, found, part.group * sizes.rows + min(row(j), sizes.rows - 1), values[n][j], j);
            }
        }
    }

    // The states of all channels of each place: add(state, number, image, channel, depth, row, column, value) adds one, which it
    // may change, and merge() another thread's state. STEP is the number of the call, and BEFORE the size of earlier ones' states.
    template <int STEP, int BEFORE, class State, class Add>
    __device__ __forceinline__ States<State, COUNT> reduced(State start, Add add) {
        constexpr int OF_WARP = STORING / (4 * GROUPS) / (32 * sizeof(State)), AT_ONCE = OF_WARP < COUNT ? OF_WARP : COUNT;
        static_assert(AT_ONCE > 0, "A state is too large");
        States<State, COUNT> found;
        #pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            found.of[n] = start;
        }
        each([&](int n, const At& at, int channel, float& value, int j) {
            State state = found.of[n];
            add(state, n, at.image, channel, at.depth, at.row, at.column, value);
            found.of[n] = row(j) < sizes.rows ? state : found.of[n];
        });
        State* all =
            reinterpret_cast<State*>(shared + threadIdx.x / (32 * WARPS) * (WARPS * STORING / 4 / GROUPS)) + threadIdx.x % 32;
        #pragma unroll
        for (int first = 0; first < COUNT; first += AT_ONCE) {
            barrier();
            #pragma unroll
            for (int n = first; n < first + AT_ONCE && n < COUNT; ++n) {
                all[(warp() * AT_ONCE + n - first) * 32] = found.of[n];
            }
            barrier();
            #pragma unroll
            for (int n = first; n < first + AT_ONCE && n < COUNT; ++n) {
                found.of[n] = all[(n - first) * 32];
                #pragma unroll
                for (int other = 1; other < WARPS; ++other) {
                    merge(found.of[n], all[(other * AT_ONCE + n - first) * 32]);
                }
            }
        }
        if (turn.several && turn.pass >= STEP) {
            State* kept = reinterpret_cast<State*>(states + BEFORE * COUNT);
            #pragma unroll
            for (int n = 0; n < COUNT; ++n) {
                if (turn.pass == STEP) {
                    State sum = part.block > 0 ? kept[n] : start;
                    merge(sum, found.of[n]);
                    kept[n] = sum;
                }
                found.of[n] = kept[n];
            }
        }
        return found;
    }

    // Store value(number, image, channel, depth, row, column, value) at to[index(image, channel, depth, row, column)].
    template <int STEP, class Value, class Index>
    __device__ __forceinline__ void store(Value value, Index index) {
        if (turn.pass < STEP && turn.several) {
            return;
        }
        const long long apart = index(0, 1, 0, 0, 0) - index(0, 0, 0, 0, 0);
        #pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const At found = at(n);
            T* at = to + index(found.image, 0, found.depth, found.row, found.column) + channel(0) * apart;
            #pragma unroll
            for (int j = 0; j < OWN; ++j, at += apart) {
                if (j > 0 && j % OWN_OF == 0) {
                    at += (row(j) - row(j - 1) - 1) * apart;
                }
                const T result = value(n, found.image, min(row(j), sizes.rows - 1), found.depth, found.row, found.column, values[n][j]);
                if (found.inside && row(j) < sizes.rows) {
                    *at = result;
                }
            }
        }
    }

    // The same once for each place.
    template <int STEP, class Value, class Index>
    __device__ __forceinline__ void store_once(Value value, Index index) {
        if (turn.several && (turn.pass < STEP - 1 || (part.block + 1) * (ROWS / STACK) < sizes.rows)) {
            return;
        }
        #pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const At found = at(n);
            if (n % WARPS == warp() && found.inside) {
                to[index(found.image, 0, found.depth, found.row, found.column)] =
                    value(n, found.image, 0, found.depth, found.row, found.column, 0.0f);
            }
        }
    }
};

// What a thread has of a part's sums as products leave them: 2 BLOCKS rows of places. PLACED says whether it matters where those are.
template <bool PLACED, class Geometry, int ROWS, int GROUPS, class Part, int BLOCKS, int SUMS>
struct RowSums {
    using Mine = Share<ROWS, GROUPS>;
    static constexpr int STACK = Geometry::STACK, OWN = 2 * BLOCKS, SHARES = Mine::OF_PLACES ? 2 : 1;

    float (&sum)[BLOCKS][SUMS];
    const Sizes& sizes;
    const Layout& layout;
    const Part& part;
    unsigned inside[SUMS / 16];  // a bit for each place

    // Of each sum, what value(image, channel, depth, row, column, sum) says takes its place.
    template <class Value>
    __device__ __forceinline__ RowSums(float (&sum)[BLOCKS][SUMS], const Sizes& sizes, const Layout& layout, const Part& part, Value value)
        : sum(sum), sizes(sizes), layout(layout), part(part) {
        const int lane = threadIdx.x % 32;
        #pragma unroll
        for (int i = 0; i < SUMS / 16; ++i) {
            #pragma unroll
            for (int of_stack = 0; of_stack < STACK; ++of_stack) {
                const bool is_inside = result_at<Geometry>(part, sizes, Mine::place() + i * 32 + lane, of_stack).inside;
                const unsigned all = __ballot_sync(0xffffffff, is_inside);
                inside[i] = lane / 4 % STACK == of_stack ? all : inside[i];
            }
        }
        each([&](int, const At& at, int channel, float& found, bool) {
            found = value(at.image, channel, at.depth, at.row, at.column, found);
        });
    }

    // The row of number j of the block's group.
    __device__ __forceinline__ int row(int j) const {
        const int line = Mine::row() + j / 2 * 64 + threadIdx.x / 32 % 4 * 16 + j % 2 * 8 + threadIdx.x % 32 / 4;
        return part.block * (ROWS / STACK) + line / STACK;
    }

    // Calls use(number of the row, place, channel, sum, whether there is such a place) for all of this thread's.
    template <class Use>
    __device__ __forceinline__ void each(Use use) {
        const int lane = threadIdx.x % 32;
        #pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
            #pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int j = m * 2 + i / 2 % 2, n = i / 4 * 8 + lane % 4 * 2 + i % 2;
                const At at = PLACED ? result_at<Geometry>(part, sizes, Mine::place() + n, lane / 4 % STACK) : At{};
                const int channel = part.group * sizes.rows + min(row(j), sizes.rows - 1);
                use(j, at, channel, sum[m][i], inside[i / 16] >> n % 32 & 1);
            }
        }
    }

    template <class State>
    __device__ __forceinline__ States<State, OWN> begun(State start) const {
        States<State, OWN> found;
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            found.of[j] = start;
        }
        return found;
    }

    // add(state, image, channel, depth, row, column, value) adds one value to a row's state.
    template <class State, class Add>
    __device__ __forceinline__ void add(States<State, OWN>& states, Add add) {
        each([&](int j, const At& at, int channel, float value, bool is_inside) {
            State state = states.of[j];
            add(state, at.image, channel, at.depth, at.row, at.column, value);
            states.of[j] = is_inside ? state : states.of[j];
        });
    }

    // Merge the states of a warp, with rows.cuh, and keep them: each channel has one for each of `parts`, those of an image or of all.
    template <class State>
    __device__ __forceinline__ void keep(const States<State, OWN>& states, int* to, int parts) const {
        const int number = (part.tile * layout.strips + part.strip / part.width) * Geometry::PHASES + part.phase;
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            State state = states.of[j];
            #pragma unroll
            for (int lanes = 1; lanes < 4 * STACK; lanes *= 2) {
                merge(state, of_lane(state, lanes));
            }
            const long long line = (long long)part.image * sizes.groups * sizes.rows + part.group * sizes.rows + row(j);
            if (threadIdx.x % (4 * STACK) == 0 && row(j) < sizes.rows) {
                reinterpret_cast<State*>(to)[line * parts + number * SHARES + (Mine::OF_PLACES ? threadIdx.x / 128 : 0)] = state;
            }
        }
    }
};

template <class Index>
constexpr bool STORES = true;
template <>
constexpr bool STORES<int> = false;

// Given as the index of results: use(sums) keeps what it makes of them, which is stored as well if there is an index.
template <bool PLACED, class Use, class Index>
struct InParts {
    Use use;
    Index index;
};

template <bool PLACED, class Use, class Index = int>
__device__ __forceinline__ InParts<PLACED, Use, Index> in_parts(Use use, Index index = {}) {
    return {use, index};
}

template <class Geometry, int ROWS, int GROUPS, int VECTOR, bool PLACED, class T, class Part, int BLOCKS, int SUMS, class Value, class Use, class Index>
__device__ __forceinline__ void keep(T* to, unsigned char* shared, float (&sum)[BLOCKS][SUMS], const Sizes& sizes, const Layout& layout,
        const Part& part, Value value, const InParts<PLACED, Use, Index>& parts) {
    RowSums<PLACED, Geometry, ROWS, GROUPS, Part, BLOCKS, SUMS> sums(sum, sizes, layout, part, value);
    parts.use(sums);
    if constexpr (STORES<Index>) {
        store<Geometry, ROWS, GROUPS, VECTOR>(
            to, shared, sum, sizes, part, [](int, int, int, int, int, float found) { return found; }, parts.index);
    }
}

template <class Index>
constexpr bool KEEPS = false;
template <bool PLACED, class Use, class Index>
constexpr bool KEEPS<InParts<PLACED, Use, Index>> = true;

template <class Geometry, int ROWS, int STRIP, int GROUPS, class T>
using PlacesOf =
    Places<Geometry, ROWS, GROUPS, Part<Geometry, ROWS, STRIP>, Share<ROWS, GROUPS>::BLOCKS, Share<ROWS, GROUPS>::SUMS, T>;

template <bool PLACED, class Geometry, int ROWS, int STRIP, int GROUPS>
using RowSumsOf =
    RowSums<PLACED, Geometry, ROWS, GROUPS, Part<Geometry, ROWS, STRIP>, Share<ROWS, GROUPS>::BLOCKS, Share<ROWS, GROUPS>::SUMS>;

// Given as the index of results: use(places) reduces them in PASSES and stores what becomes of them. A place's states have so many
// BYTES.
template <int PASSES, int BYTES, class Use>
struct Reducing {
    Use use;
};

template <int PASSES, int BYTES, class Use>
__device__ __forceinline__ Reducing<PASSES, BYTES, Use> reducing(Use use) {
    return {use};
}

template <class Index>
struct Passes {
    static constexpr bool REDUCES = false;
    static constexpr int COUNT = 1, BYTES = 0;
};

template <int PASSES, int OF_PLACE, class Use>
struct Passes<Reducing<PASSES, OF_PLACE, Use>> {
    static constexpr bool REDUCES = true;
    static constexpr int COUNT = PASSES, BYTES = OF_PLACE;
};

template <class Geometry, int ROWS, int GROUPS, class Part, int BLOCKS, int SUMS, class T, class Value, class Use>
__device__ __forceinline__ void reduce(T* to, unsigned char* shared, const float (&sum)[BLOCKS][SUMS], const Sizes& sizes,
        const Layout& layout, const Part& part, const Turn& turn, unsigned char* states, Value value, Use use) {
    Places<Geometry, ROWS, GROUPS, Part, BLOCKS, SUMS, T> places = {to, shared, sizes, layout, part, turn, states};
    places.fill(sum, value);
    use(places);
}

// Compute again, one after another, sums that aren't finite: a tap that is not of all phases has weights of 0, which make NaN of an infinite input.
template <class Geometry, int ROWS, int DEEP, int GROUPS, class Part, int BLOCKS, int SUMS, class T>
__device__ __forceinline__ void mend(float (&sum)[BLOCKS][SUMS], const T* input, const T* packed, const Sizes& sizes, const Part& part,
        const Section* sections, const Tap<Geometry::STACK>* taps, const int* phases) {
    using Mine = Share<ROWS, GROUPS>;
    constexpr int STACK = Geometry::STACK, CHUNK = TERMS<T>, ALL = DEEP * STEP<T> * ROWS;
    float zero[4] = {};
    #pragma unroll
    for (int i = 0; i < BLOCKS * SUMS; ++i) {
        zero[i % 4] = fmaf(sum[i / SUMS][i % SUMS], 0.0f, zero[i % 4]);
    }
    if (zero[0] + zero[1] + zero[2] + zero[3] == 0.0f) {
        return;
    }
    float found[BLOCKS * SUMS];
    #pragma unroll
    for (int i = 0; i < BLOCKS * SUMS; ++i) {
        found[i] = sum[i / SUMS][i % SUMS];
    }
    const int lane = threadIdx.x % 32, stages = ceil_div(sizes.channels, DEEP * STEP<T>);
    const long long size = (long long)sizes.input[0] * sizes.input[1] * sizes.input[2];
    const Stages<Geometry, DEEP * STEP<T>> own(part, sizes);
    #pragma unroll 1
    for (int i = 0; i < BLOCKS * SUMS; ++i) {
        const int n = Mine::place() + i % SUMS / 4 * 8 + lane % 4 * 2 + i % 2;
        const int line = Mine::row() + i / SUMS * 64 + threadIdx.x / 32 % 4 * 16 + i / 2 % 2 * 8 + lane / 4, of_stack = line % 16 % STACK;
        if (found[i] * 0.0f == 0.0f || !result_at<Geometry>(part, sizes, n, of_stack).inside) {
            continue;
        }
        const Place place = part.place(n);
        const T* plane = input + ((long long)place.image * sizes.groups + part.group) * sizes.channels * size;
        found[i] = 0.0f;
        for (int number = phases[part.phase]; number < phases[part.phase + 1]; ++number) {
            const Section section = sections[number];
            for (int t = 0; t < section.taps; ++t) {
                const Tap<STACK>& tap = taps[section.first + t];
                if (tap.weights[of_stack] < 0) {
                    continue;
                }
                const int depth = place.depth * Geometry::STEPS[0] + section.depth, row = (place.row + tap.row) * Geometry::STEPS[1] + section.row;
                const int column = (part.strip + place.column + tap.column) * Geometry::STEPS[2] + section.column;
                if (depth < 0 || depth >= sizes.input[0] || row < 0 || row >= sizes.input[1] || column < 0 || column >= sizes.input[2]) {
                    continue;
                }
                const T* from = plane + ((long long)depth * sizes.input[1] + row) * sizes.input[2] + column;
                for (int channel = own.first * DEEP * STEP<T>; channel < min(own.end * DEEP * STEP<T>, sizes.channels); ++channel) {
                    const int unit = section.first * stages + channel / (DEEP * STEP<T>) * section.taps + t;
                    const T* weight = packed + (long long)unit * (Geometry::EXACT ? 2 : 1) * ALL
                        + (channel / CHUNK % (2 * DEEP) * ROWS + line) * CHUNK + channel % CHUNK;
                    const float x = load_number(from + channel * size);
                    found[i] = fmaf(Geometry::EXACT || sizeof(T) == 2 ? x : rounded(x), (float)weight[0] + (Geometry::EXACT ? (float)weight[ALL] : 0.0f), found[i]);
                }
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < BLOCKS * SUMS; ++i) {
        sum[i / SUMS][i % SUMS] = found[i];
    }
}

// Store value(image, channel, depth, row, column, sum) of all places at to[index(image, channel, depth, row, column)]. `shared` has
// STAGES stages, and STORING bytes and 1024 more. GROUPS warp groups multiply, TEAMS of two warps load stages in turn. Blocks take
// parts in turn.
template <class Geometry, int ROWS, int STRIP, int DEEP, int STAGES, int GROUPS, int TEAMS, int VECTOR, class Out, class T, class Value, class Index>
__device__ __forceinline__ void convolve(Out* to, unsigned char* shared, const T* input, const T* weights, const Sizes& sizes,
        const Section* sections, const Tap<Geometry::STACK>* taps, const int* phases, Value value, Index index) {
    static_assert(STAGES >= 2, "A stage is given back when the products of the next one are issued");
    static_assert(STRIP > 1 || !JOINS<Index>, "Strips have pairs of columns");
    static_assert(TEAMS == 1 || (TEAMS == 2 && GROUPS == 1), "Loaders are two warps, or a warp group that gives registers to another one");
    using Own = Shape<Geometry, ROWS, STRIP, DEEP>;
    using Mine = Part<Geometry, ROWS, STRIP>;
    using Sums = Share<ROWS, GROUPS>;
    constexpr int PACKED = Own::PARTS * DEEP * STEP<T> * ROWS, CONSUMERS = 128 * GROUPS, THREADS = CONSUMERS + PRODUCERS * TEAMS;
    constexpr int BLOCKS = Sums::BLOCKS, SUMS = Sums::SUMS;
    // The compiler has to see that a warp takes one way.
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    __shared__ Layout layout;
    lay_out<Geometry, ROWS, (VECTOR == 2 && STRIP > 1 ? STRIP / 2 * 2 : STRIP), VECTOR>(layout, sizes);
    __syncthreads();
    const int parts = Mine::count(sizes, layout);
    const int channel_stages = ceil_div(terms_of<Geometry>(sizes), DEEP * STEP<T>);
    shared += -shared_address(shared) & 1023u;
    auto weights_of = [&](const Mine& part) {
        return weights + ((long long)part.group * ceil_div(sizes.rows, OUTPUTS_OF<Geometry::STACK, ROWS>) + part.block) * Geometry::TAPS
            * channel_stages * PACKED;
    };
    float sum[BLOCKS][SUMS];
    using Reduces = Passes<Index>;
    const int all = Reduces::REDUCES ? ceil_div(sizes.rows, OUTPUTS_OF<Geometry::STACK, ROWS>) : 1;
    // In memory, as few need it: the compiler doesn't see that min() is 0.
    alignas(8) unsigned char states[Reduces::BYTES * (SUMS / 16 * Geometry::STACK) + 8];
    unsigned char* kept = states + (Reduces::REDUCES ? min(all, 0) : 0);
    auto finish = [&](const Mine& part, const Turn& turn) {
        if constexpr (Geometry::STACK > 1) {
            mend<Geometry, ROWS, DEEP, GROUPS>(sum, input, weights_of(part), sizes, part, sections, taps, phases);
            __syncwarp();
        }
        if constexpr (Reduces::REDUCES) {
            reduce<Geometry, ROWS, GROUPS>(to, shared + STAGES * Own::STAGE, sum, sizes, layout, part, turn, kept, value, index.use);
        } else if constexpr (KEEPS<Index>) {
            keep<Geometry, ROWS, GROUPS, VECTOR>(to, shared + STAGES * Own::STAGE, sum, sizes, layout, part, value, index);
        } else {
            store<Geometry, ROWS, GROUPS, VECTOR>(to, shared + STAGES * Own::STAGE, sum, sizes, part, value, index);
        }
    };
#if CONVOLUTIONS_WGMMA
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned memory = shared_address(shared), bars = shared_address(barriers);
    auto full = [&](int slot) { return Barrier{bars + slot * 8}; };
    auto empty = [&](int slot) { return Barrier{bars + (STAGES + slot) * 8}; };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            full(i).init(PRODUCERS + 1);
            empty(i).init(CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int slot = 0;
    if (warp >= CONSUMERS / 32) {
        if (TEAMS == 2) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        }
        const int team = TEAMS == 1 ? 0 : (warp - CONSUMERS / 32) / 2;
        int parity = 1, turn_of = 0;
        #pragma unroll 1
        for (int n = 0; Turn(n, all, Reduces::COUNT).number < parts; ++n) {
            const Mine part(sizes, layout, Turn(n, all, Reduces::COUNT).number);
            const T* packed = weights_of(part);
            const Stages<Geometry, DEEP * STEP<T>> own(part, sizes);
            Loader<T, Geometry, Own, Mine, DEEP, PRODUCERS / 32> loader(input, sizes, part, warp % 2);
            #pragma unroll 1
            for (int number = phases[part.phase]; number < phases[part.phase + 1]; ++number) {
                const Section section = sections[number];
                const int bytes = section.taps * Own::PARTS * DEEP * Own::WEIGHTS;
                const T* from = packed + (long long)section.first * channel_stages * PACKED;
                if (own.end > own.first + 1 || turn_of == team) {
                    loader.begin(section);
                }
                #pragma unroll 1
                for (int stage = own.first; stage < own.end; ++stage) {
                    if (turn_of == team) {
                        unsigned char* at = shared + slot * Own::STAGE;
                        loader.load(reinterpret_cast<float4*>(at), stage * DEEP * STEP<T>, [&] {
                            empty(slot).wait(parity);
                            if (threadIdx.x == CONSUMERS + team * PRODUCERS) {
                                full(slot).copy(
                                    memory + slot * Own::STAGE + Own::INPUT, from + (long long)stage * bytes / sizeof(T), bytes);
                            }
                        });
                        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                        full(slot).arrive();
                    }
                    turn_of = (turn_of + 1) % TEAMS;
                    if (++slot == STAGES) {
                        slot = 0, parity ^= 1;
                    }
                }
            }
        }
    } else {
        if (TEAMS == 2) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
        }
        int parity = 0;
        #pragma unroll 1
        for (int n = 0; Turn(n, all, Reduces::COUNT).number < parts; ++n) {
            const Turn turn(n, all, Reduces::COUNT);
            const Mine part(sizes, layout, turn.number);
            const Stages<Geometry, DEEP * STEP<T>> own(part, sizes);
            #pragma unroll
            for (int i = 0; i < BLOCKS * SUMS; ++i) {
                sum[i / SUMS][i % SUMS] = 0.0f;
            }
            int before = -1;
            #pragma unroll 1
            for (int number = phases[part.phase]; number < phases[part.phase + 1]; ++number) {
                const Section section = sections[number];
                #pragma unroll 1
                for (int stage = own.first; stage < own.end; ++stage) {
                    full(slot).wait(parity);
                    const unsigned at = memory + slot * Own::STAGE;
                    const unsigned long long a = descriptor(at + Own::INPUT + Sums::row() * 16, ROWS * 16);
                    const unsigned long long b = descriptor(at + Sums::place() * 16, Own::LINES * 16);
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                    #pragma unroll 1
                    for (int i = 0; i < section.taps; ++i) {
                        const Tap<Geometry::STACK>& tap = taps[section.first + i];
                        const int offset = tap.row * part.pitch.by + tap.column;
                        #pragma unroll
                        for (int sub = 0; sub < DEEP; ++sub) {
                            constexpr int LEFT_OF_A = DEEP * Own::WEIGHTS / 16, LEFT_OF_B = DEEP * 2 * Own::LINES;
                            const unsigned long long from_a = a + (i * Own::PARTS * DEEP + sub) * (Own::WEIGHTS / 16);
                            const unsigned long long from_b = b + sub * 2 * Own::LINES + offset;
                            auto product = [&](int m, unsigned long long a, unsigned long long b) {
                                TEAMS == 2 ? wgmma_halves<T>(sum[m], a, b) : wgmma<T>(sum[m], a, b);
                            };
                            #pragma unroll
                            for (int m = 0; m < BLOCKS; ++m) {
                                if (Geometry::EXACT) {
                                    product(m, from_a + m * 64 + LEFT_OF_A, from_b);
                                    product(m, from_a + m * 64, from_b + LEFT_OF_B);
                                }
                                product(m, from_a + m * 64, from_b);
                            }
                        }
                    }
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (before >= 0 && lane == 0) {
                        empty(before).arrive();
                    }
                    before = slot;
                    if (++slot == STAGES) {
                        slot = 0, parity ^= 1;
                    }
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (before >= 0 && lane == 0) {
                empty(before).arrive();
            }
            #pragma unroll
            for (int i = 0; i < BLOCKS * SUMS; ++i) {
                asm volatile("" : "+f"(sum[i / SUMS][i % SUMS])::"memory");
            }
            finish(part, turn);
        }
    }
#else
    #pragma unroll 1
    for (int n = 0; Turn(n, all, Reduces::COUNT).number < parts; ++n) {
        const Turn turn(n, all, Reduces::COUNT);
        const Mine part(sizes, layout, turn.number);
        const T* packed = weights_of(part);
        const Stages<Geometry, DEEP * STEP<T>> own(part, sizes);
        #pragma unroll
        for (int i = 0; i < BLOCKS * SUMS; ++i) {
            sum[i / SUMS][i % SUMS] = 0.0f;
        }
        Loader<T, Geometry, Own, Mine, DEEP, THREADS / 32> loader(input, sizes, part, warp);
        #pragma unroll 1
        for (int number = phases[part.phase]; number < phases[part.phase + 1]; ++number) {
            const Section section = sections[number];
            const float4* from = reinterpret_cast<const float4*>(packed + (long long)section.first * channel_stages * PACKED);
            const int count = section.taps * Own::PARTS * DEEP * (Own::WEIGHTS / 16);
            loader.begin(section);
            #pragma unroll 1
            for (int stage = own.first; stage < own.end; ++stage) {
                float4* at = reinterpret_cast<float4*>(shared);
                loader.load(at, stage * DEEP * STEP<T>, [] { __syncthreads(); });
                for (int i = threadIdx.x; i < count; i += THREADS) {
                    at[Own::INPUT / 16 + i] = from[stage * count + i];
                }
                __syncthreads();
                for (int i = 0; i < section.taps && warp < CONSUMERS / 32; ++i) {
                    const Tap<Geometry::STACK>& tap = taps[section.first + i];
                    #pragma unroll
                    for (int sub = 0; sub < DEEP; ++sub) {
                        const unsigned* a = reinterpret_cast<const unsigned*>(shared + Own::INPUT)
                            + (i * Own::PARTS * DEEP + sub) * (Own::WEIGHTS / 4) + Sums::row() * 4;
                        const unsigned* b = reinterpret_cast<const unsigned*>(shared)
                            + (sub * 2 * Own::LINES + tap.row * part.pitch.by + tap.column + Sums::place()) * 4;
                        #pragma unroll
                        for (int m = 0; m < BLOCKS; ++m, a += 64 * 4) {
                            if (Geometry::EXACT) {
                                multiply<T>(sum[m], a + DEEP * (Own::WEIGHTS / 4), ROWS, b, Own::LINES);
                                multiply<T>(sum[m], a, ROWS, b + DEEP * 8 * Own::LINES, Own::LINES);
                            }
                            multiply<T>(sum[m], a, ROWS, b, Own::LINES);
                        }
                    }
                }
            }
        }
        if (warp < CONSUMERS / 32) {
            finish(part, turn);
        }
    }
#endif
}

// ---- Few channels ---------------------------------------------------------------------------------------------------------

// N numbers beside each other, which are loaded or stored at once.
template <int N, class T>
struct alignas(N * sizeof(T)) Several {
    T of[N];
};

// 4 COUNT bytes; 0 where there are none.
template <int COUNT>
__device__ __forceinline__ void load_words(unsigned (&words)[COUNT], const void* at, bool there) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "Loads have 4, 8 or 16 bytes");
    if constexpr (COUNT == 1) {
        asm("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1];}" : "=r"(words[0]) : "l"(at), "r"((int)there));
    } else if constexpr (COUNT == 2) {
        asm("{.reg .pred p; setp.ne.s32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%2];}"
            : "=r"(words[0]), "=r"(words[1]) : "l"(at), "r"((int)there));
    } else {
        asm("{.reg .pred p; setp.ne.s32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
            "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
            : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(at), "r"((int)there));
    }
}

// N numbers beside each other, where they are aligned; 0 where there are none.
template <int N, class T>
__device__ __forceinline__ void load_several(float* values, const T* at, bool there) {
    if constexpr (sizeof(T) == 4) {
        unsigned words[N];
        load_words(words, at, there);
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            values[i] = __uint_as_float(words[i]);
        }
    } else if constexpr (N == 1) {
        unsigned short word;
        asm("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.u16 %0, [%1];}" : "=h"(word) : "l"(at), "r"((int)there));
        values[0] = (float)*reinterpret_cast<const T*>(&word);
    } else {
        unsigned words[N / 2];
        load_words(words, at, there);
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            const unsigned short word = words[i / 2] >> i % 2 * 16;
            values[i] = (float)*reinterpret_cast<const T*>(&word);
        }
    }
}

// A part of the input's columns, COUNT of them from one that is a multiple of VECTOR and PADDING before another one.
template <int COUNT, int PADDING, int VECTOR>
struct Columns {
    static constexpr int BEFORE = (PADDING + VECTOR - 1) / VECTOR * VECTOR, SHIFT = BEFORE - PADDING;
    static constexpr int UNITS = (SHIFT + COUNT + VECTOR - 1) / VECTOR;
    const int first;
    unsigned within[(UNITS + 31) / 32] = {};  // a bit for each unit

    __device__ __forceinline__ Columns(int column, int wide) : first(column - BEFORE) {
        #pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            within[i / 32] |= (unsigned)((unsigned)(first + i * VECTOR) < (unsigned)wide) << i % 32;
        }
    }

    template <class T>
    __device__ __forceinline__ void load(float (&values)[UNITS * VECTOR], const T* line, bool there) const {
        #pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            load_several<VECTOR>(values + i * VECTOR, line + first + i * VECTOR, there && (within[i / 32] >> i % 32 & 1));
        }
    }
};

// Along an axis: which input, from base() on, a thread's j-th place has for a tap. Of a transposed convolution a thread's first place is a multiple of
// the stride, and not all taps count.
template <class Geometry, int AXIS>
struct Axis {
    static constexpr bool UP = Geometry::TRANSPOSED;
    static constexpr int STEP = Geometry::STEPS[AXIS], PADDING = Geometry::PADDING[AXIS], APART = Geometry::DILATION[AXIS];

    __device__ __forceinline__ static constexpr bool counts(int j, int tap) { return !UP || (j + PADDING - tap * APART) % STEP == 0; }

    __device__ __forceinline__ static constexpr int at(int j, int tap) {
        return UP ? (j + PADDING - tap * APART) / STEP : j * STEP + tap * APART - PADDING;
    }

    __device__ __forceinline__ static constexpr int base(int place) { return UP ? place / STEP : place * STEP; }
};

// The last input, or the first one with a sign of -1, of so many places and taps, times the sign.
template <class Axis, int PLACES, int TAPS>
__device__ constexpr int furthest(int sign) {
    int found = -(1 << 20);
    for (int j = 0; j < PLACES; ++j) {
        for (int tap = 0; tap < TAPS; ++tap) {
            found = Axis::counts(j, tap) && sign * Axis::at(j, tap) > found ? sign * Axis::at(j, tap) : found;
        }
    }
    return found;
}

template <class Geometry, int AXIS, int PLACES, int TAPS>
struct Along : Axis<Geometry, AXIS> {
    static_assert(!Geometry::TRANSPOSED || PLACES % Geometry::STEPS[AXIS] == 0, "Places of a thread begin at multiples of the stride");
    static constexpr int FIRST = -furthest<Axis<Geometry, AXIS>, PLACES, TAPS>(-1);
    static constexpr int COUNT = furthest<Axis<Geometry, AXIS>, PLACES, TAPS>(1) - FIRST + 1;
};

// Add what RUN x ACROSS places of the result have of a plane of the input: `weight` gives the plane's weights.
template <class Geometry, int RUN, int ACROSS, int VECTOR, class T, class Weight>
__device__ __forceinline__ void convolve_plane(float (&sum)[RUN][ACROSS], const T* plane, int row, int column, const Sizes& sizes, Weight weight) {
    constexpr int HIGH = Geometry::KERNEL[1], WIDE = Geometry::KERNEL[2];
    // Of large kernels a part of a row at a time.
    constexpr bool WHOLE = HIGH * WIDE <= 64 || Geometry::TRANSPOSED;
    constexpr int TALL = WHOLE ? HIGH : 1, PIECE = WHOLE || WIDE <= 16 ? WIDE : 16;
    using Down = Along<Geometry, 1, RUN, TALL>;
    using Right = Along<Geometry, 2, ACROSS, PIECE>;
    using Here = Columns<Right::COUNT, -Right::FIRST, VECTOR>;
    const int high = sizes.input[1], wide = sizes.input[2];
    #pragma unroll 1
    for (int first_row = 0; first_row < HIGH; first_row += TALL) {
        #pragma unroll 1
        for (int first = 0; first < WIDE; first += PIECE) {
            float weights[TALL][PIECE];
            #pragma unroll
            for (int y = 0; y < TALL; ++y) {
                #pragma unroll
                for (int x = 0; x < PIECE; ++x) {
                    weights[y][x] = WIDE % PIECE == 0 || first + x < WIDE ? weight((first_row + y) * WIDE + first + x) : 0.0f;
                }
            }
            const Here here(Right::base(column) + first * Right::APART, wide);
            const int top = Down::base(row) + Down::FIRST + first_row * Down::APART;
            const T* line = plane + (long long)top * wide;
            #pragma unroll
            for (int number = 0; number < Down::COUNT; ++number, line += wide) {
                float values[Here::UNITS * VECTOR];
                here.load(values, line, (unsigned)(top + number) < (unsigned)high);
                #pragma unroll
                for (int i = 0; i < RUN; ++i) {
                    #pragma unroll
                    for (int y = 0; y < TALL; ++y) {
                        if (!Down::counts(i, y) || Down::at(i, y) != Down::FIRST + number) {
                            continue;
                        }
                        #pragma unroll
                        for (int x = 0; x < PIECE; ++x) {
                            if (WIDE % PIECE != 0 && first + x >= WIDE) {
                                break;
                            }
                            #pragma unroll
                            for (int j = 0; j < ACROSS; ++j) {
                                if (Right::counts(j, x)) {
                                    sum[i][j] = fmaf(values[Here::SHIFT + Right::at(j, x) - Right::FIRST], weights[y][x], sum[i][j]);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

// A thread's line and its place in that, of so many, without 64-bit divisions, which take long.
struct Lines {
    unsigned line, place;

    __device__ __forceinline__ Lines(unsigned block, unsigned across) {
        const unsigned first = block % across * blockDim.x + threadIdx.x;
        line = block / across * blockDim.x + first / across, place = first % across;
    }
};

// Whether VECTOR columns of the input are loaded at once, which ACROSS places of a thread begin at.
template <class Geometry, int ACROSS, int VECTOR>
constexpr bool FITS = VECTOR > 1
    && (Geometry::TRANSPOSED ? ACROSS % (Geometry::STEPS[2] * VECTOR) == 0 : ACROSS * Geometry::STEPS[2] % VECTOR == 0);

template <class Geometry, int ACROSS, int VECTOR, class T>
__device__ __forceinline__ bool is_aligned(const T* input, const Sizes& sizes) {
    return FITS<Geometry, ACROSS, VECTOR> && sizes.input[2] % VECTOR == 0 && reinterpret_cast<size_t>(input) % (VECTOR * sizeof(T)) == 0;
}

// Stores ACROSS neighbours, four at once where they are aligned: value(column, number).
template <int ACROSS, class Out, class Index, class Value>
__device__ __forceinline__ void store_line(Out* to, const Sizes& sizes, int image, int channel, int depth, int row, int column, Index index,
        Value value) {
    const auto apart = index(0, 0, 0, 0, 1), strides = index(0, 1, 0, 0, 0) | index(0, 0, 1, 0, 0) | index(0, 0, 0, 1, 0) | index(1, 0, 0, 0, 0);
    Out* line = to + index(image, channel, depth, row, column);
    if (ACROSS % 4 == 0 && apart == 1 && strides % 4 == 0 && index(0, 0, 0, 0, 0) == 0 && sizes.output[2] % 4 == 0
        && reinterpret_cast<size_t>(to) % (4 * sizeof(Out)) == 0) {
        #pragma unroll
        for (int j = 0; j + 3 < ACROSS; j += 4) {
            Several<4, Out> found;
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                found.of[k] = value(min(column + j + k, sizes.output[2] - 1), j + k);
            }
            if (column + j < sizes.output[2]) {
                *reinterpret_cast<Several<4, Out>*>(line + j) = found;
            }
        }
        return;
    }
    #pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
        if (column + j < sizes.output[2]) {
            line[j * apart] = value(column + j, j);
        }
    }
}

// A thread computes RUN x ACROSS places of the result in fp32; for groups of few inputs and outputs. Geometry has KERNEL, STEPS, PADDING and
// DILATION of each axis, and is TRANSPOSED or not. weight(group, row, channel, tap) gives weights; the rest is as above. VECTOR columns of the input are loaded at once
// where rows of it have a multiple of that.
template <class Geometry, int RUN, int ACROSS, int VECTOR, class Out, class T, class Weight, class Value, class Index>
__device__ __forceinline__ void convolve_directly(Out* to, const T* input, const Sizes& sizes, Weight weight, Value value,
        Index index) {
    constexpr int DEEP = Geometry::KERNEL[0], TAPS = Geometry::KERNEL[1] * Geometry::KERNEL[2];
    const Lines lines(blockIdx.x, ceil_div(sizes.output[2], ACROSS));
    const int column = lines.place * ACROSS;
    const unsigned runs = ceil_div(sizes.output[1], RUN);
    const int first = lines.line % runs * RUN;
    unsigned rest = lines.line / runs;
    const int depth = rest % sizes.output[0];
    rest /= sizes.output[0];
    const int row = rest % sizes.rows;
    rest /= sizes.rows;
    const int group = rest % sizes.groups, image = rest / sizes.groups;
    if (image >= sizes.images) {
        return;
    }
    const long long plane = (long long)sizes.input[1] * sizes.input[2];
    float sum[RUN][ACROSS] = {};
    const bool aligned = is_aligned<Geometry, ACROSS, VECTOR>(input, sizes);
    #pragma unroll 1
    for (int channel = 0; channel < sizes.channels; ++channel) {
        #pragma unroll 1
        for (int z = 0; z < DEEP; ++z) {
            const int whole = depth + Geometry::PADDING[0] - z * Geometry::DILATION[0];
            const int in_depth = Geometry::TRANSPOSED ? whole / Geometry::STEPS[0]
                                                      : depth * Geometry::STEPS[0] - Geometry::PADDING[0] + z * Geometry::DILATION[0];
            if (in_depth < 0 || in_depth >= sizes.input[0] || (Geometry::TRANSPOSED && (whole < 0 || whole % Geometry::STEPS[0] != 0))) {
                continue;
            }
            const T* from = input
                + ((((long long)image * sizes.groups + group) * sizes.channels + channel) * sizes.input[0] + in_depth) * plane;
            auto taps = [&](int tap) { return (float)weight(group, row, channel, z * TAPS + tap); };
            if (aligned) {
                convolve_plane<Geometry, RUN, ACROSS, FITS<Geometry, ACROSS, VECTOR> ? VECTOR : 1>(sum, from, first, column, sizes, taps);
            } else {
                convolve_plane<Geometry, RUN, ACROSS, 1>(sum, from, first, column, sizes, taps);
            }
        }
    }
    const int channel = group * sizes.rows + row;
    #pragma unroll
    for (int i = 0; i < RUN; ++i) {
        if (first + i < sizes.output[1]) {
            store_line<ACROSS>(to, sizes, image, channel, depth, first + i, column, index,
                [&](int column, int j) { return value(image, channel, depth, first + i, column, sum[i][j]); });
        }
    }
}

// Add what OUTPUTS channels of ACROSS places have of all inputs of an image's group.
template <class Geometry, int OUTPUTS, int ACROSS, int VECTOR, class T>
__device__ __forceinline__ void add_lines(float (&sum)[OUTPUTS][ACROSS], const float* shared, const T* input, int depth, int row, int column,
        const Sizes& sizes) {
    constexpr int DEEP = Geometry::KERNEL[0], HIGH = Geometry::KERNEL[1], WIDE = Geometry::KERNEL[2];
    constexpr int PIECE = WIDE <= 8 ? WIDE : 8, APART = Geometry::DILATION[2], RIGHT = Geometry::STEPS[2];
    using Here = Columns<(ACROSS - 1) * RIGHT + (PIECE - 1) * APART + 1, Geometry::PADDING[2], VECTOR>;
    const int top = row * Geometry::STEPS[1] - Geometry::PADDING[1];
    #pragma unroll 1
    for (int first = 0; first < WIDE; first += PIECE) {
        const Here here(column * RIGHT + first * APART, sizes.input[2]);
        #pragma unroll 1
        for (int number = 0; number < sizes.channels * DEEP; ++number) {
            const int in_depth = depth * Geometry::STEPS[0] - Geometry::PADDING[0] + number % DEEP * Geometry::DILATION[0];
            const bool within = (unsigned)in_depth < (unsigned)sizes.input[0];
            const T* line = input + ((long long)(number / DEEP * sizes.input[0] + in_depth) * sizes.input[1] + top) * sizes.input[2];
            const float* weights = shared + (number * HIGH * WIDE + first) * OUTPUTS;
            #pragma unroll (HIGH * PIECE <= 9 ? HIGH : 1)
            for (int y = 0; y < HIGH; ++y, line += Geometry::DILATION[1] * sizes.input[2], weights += WIDE * OUTPUTS) {
                float values[Here::UNITS * VECTOR];
                here.load(values, line, within && (unsigned)(top + y * Geometry::DILATION[1]) < (unsigned)sizes.input[1]);
                #pragma unroll
                for (int x = 0; x < PIECE; ++x) {
                    if (WIDE % PIECE != 0 && first + x >= WIDE) {
                        break;
                    }
                    #pragma unroll
                    for (int four = 0; four < OUTPUTS; four += 4) {
                        const float4 w = *reinterpret_cast<const float4*>(weights + x * OUTPUTS + four);
                        #pragma unroll
                        for (int i = 0; i < ACROSS; ++i) {
                            const float found = values[Here::SHIFT + i * RIGHT + x * APART];
                            sum[four][i] = fmaf(found, w.x, sum[four][i]);
                            sum[four + 1][i] = fmaf(found, w.y, sum[four + 1][i]);
                            sum[four + 2][i] = fmaf(found, w.z, sum[four + 2][i]);
                            sum[four + 3][i] = fmaf(found, w.w, sum[four + 3][i]);
                        }
                    }
                }
            }
        }
    }
}

// A thread computes OUTPUTS channels of ACROSS places of the result, beside each other, in fp32; for few terms. `shared` has the
// weights of a block: OUTPUTS numbers for each term. The rest is as above; block numbers go over outputs first, then groups.
template <class Geometry, int OUTPUTS, int ACROSS, int VECTOR, class Out, class T, class Weight, class Value, class Index>
__device__ __forceinline__ void convolve_few(Out* to, float* shared, const T* input, const Sizes& sizes, Weight weight, Value value,
        Index index) {
    static_assert(OUTPUTS % 4 == 0, "Weights are loaded four at a time");
    constexpr int TAPS = Geometry::KERNEL[0] * Geometry::KERNEL[1] * Geometry::KERNEL[2];
    const int blocks = ceil_div(sizes.rows, OUTPUTS), first_row = blockIdx.x % blocks * OUTPUTS;
    const int group = blockIdx.x / blocks % sizes.groups;
    for (int i = threadIdx.x; i < sizes.channels * TAPS * OUTPUTS; i += blockDim.x) {
        const int row = first_row + i % OUTPUTS;
        shared[i] = row < sizes.rows ? (float)weight(group, row, i / OUTPUTS / TAPS, i / OUTPUTS % TAPS) : 0.0f;
    }
    __syncthreads();
    const Lines lines(blockIdx.x / blocks / sizes.groups, ceil_div(sizes.output[2], ACROSS));
    const int column = lines.place * ACROSS, row = lines.line % sizes.output[1], depth = lines.line / sizes.output[1] % sizes.output[0];
    const int image = lines.line / sizes.output[1] / sizes.output[0];
    if (image >= sizes.images) {
        return;
    }
    const T* from = input + ((long long)image * sizes.groups + group) * sizes.channels * sizes.input[0] * sizes.input[1] * sizes.input[2];
    float sum[OUTPUTS][ACROSS] = {};
    if (is_aligned<Geometry, ACROSS, VECTOR>(input, sizes)) {
        add_lines<Geometry, OUTPUTS, ACROSS, FITS<Geometry, ACROSS, VECTOR> ? VECTOR : 1>(sum, shared, from, depth, row, column, sizes);
    } else {
        add_lines<Geometry, OUTPUTS, ACROSS, 1>(sum, shared, from, depth, row, column, sizes);
    }
    #pragma unroll
    for (int j = 0; j < OUTPUTS; ++j) {
        if (first_row + j < sizes.rows) {
            const int channel = group * sizes.rows + first_row + j;
            store_line<ACROSS>(to, sizes, image, channel, depth, row, column, index,
                [&](int column, int i) { return value(image, channel, depth, row, column, sum[j][i]); });
        }
    }
}

}  // namespace convolutions
