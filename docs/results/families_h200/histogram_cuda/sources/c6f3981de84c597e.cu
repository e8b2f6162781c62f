/*
[[launch]]
kernel = "clear"
grid = [1]
block = [256]
args = ["counts"]

[[launch]]
kernel = "histogram"
grid = ["ceil_div(n, BLOCK * ITEMS * VECTOR)"]
block = ["BLOCK"]
args = ["values", "counts", "n"]
*/
#define KIND 1
#define BLOCK 256
#define ITEMS 16
#define VECTOR 4
#define COPIES 1

#define TABLES (KIND == 0 ? 1 : COPIES)

extern "C" __global__ void clear(int* counts) {
    counts[threadIdx.x] = 0;
}

__device__ void add(int* table, unsigned int word, int bytes) {
#pragma unroll
    for (int i = 0; i < bytes; ++i) {
        atomicAdd(&table[word >> (8 * i) & 255], 1);
    }
}

// VECTOR bytes at a time, ITEMS times a thread. Kind 0 counts in global memory, kind 1 in COPIES tables of the block.
extern "C" __global__ void histogram(const unsigned char* __restrict__ values, int* counts, int n) {
    __shared__ int tables[TABLES][256];
    int* table = counts;
    if (KIND == 1) {
        for (int i = threadIdx.x; i < 256 * COPIES; i += BLOCK) {
            tables[0][i] = 0;
        }
        __syncthreads();
        table = tables[threadIdx.x / 32 % COPIES];
    }
    long long first = (long long)blockIdx.x * BLOCK * ITEMS * VECTOR;
#pragma unroll 4
    for (int item = 0; item < ITEMS; ++item) {
        long long at = first + ((long long)item * BLOCK + threadIdx.x) * VECTOR;
        if (at + VECTOR <= n) {
#if VECTOR == 16
            uint4 four = *reinterpret_cast<const uint4*>(values + at);
            add(table, four.x, 4);
            add(table, four.y, 4);
            add(table, four.z, 4);
            add(table, four.w, 4);
#elif VECTOR == 4
            add(table, *reinterpret_cast<const unsigned int*>(values + at), 4);
#else
            add(table, values[at], 1);
#endif
        } else {
            for (; at < n && at < first + ((long long)item * BLOCK + threadIdx.x + 1) * VECTOR; ++at) {
                add(table, values[at], 1);
            }
        }
    }
    if (KIND == 1) {
        __syncthreads();
        for (int bin = threadIdx.x; bin < 256; bin += BLOCK) {
            int sum = 0;
            for (int copy = 0; copy < COPIES; ++copy) {
                sum += tables[copy][bin];
            }
            if (sum) {
                atomicAdd(&counts[bin], sum);
            }
        }
    }
}
