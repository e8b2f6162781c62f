/*
[[launch]]
kernel = "random_words"
grid = ["ceil_div(n, 512)"]
block = [128]
args = ["keys", "words", "ones", "n"]
*/
// Products in 64 bits, population counts, byte permutations, funnel shifts, exclusive-ors of three by inline PTX; four a thread.
#define STEP(h, factor, shift) ((unsigned)((unsigned long long)((h) ^ __funnelshift_r((h), 0, (shift))) * (factor)))

__device__ __forceinline__ unsigned mixed(unsigned h) {
    unsigned last;
    h = STEP(STEP(h, 0x85ebca6bu, 16), 0xc2b2ae35u, 13);
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(last) : "r"(h), "r"(__byte_perm(h, 0, 0x4432)), "r"(0u));
    return last;
}

extern "C" __global__ void random_words(const unsigned* keys, unsigned* words, unsigned char* ones, int n) {
    int i = 4 * (blockIdx.x * 128 + threadIdx.x);
    if (i + 3 < n) {
        uint4 four = *reinterpret_cast<const uint4*>(keys + i);
        four = make_uint4(mixed(four.x), mixed(four.y), mixed(four.z), mixed(four.w));
        *reinterpret_cast<uint4*>(words + i) = four;
        *reinterpret_cast<uchar4*>(ones + i) = make_uchar4(__popc(four.x), __popc(four.y), __popc(four.z), __popc(four.w));
    } else {
        for (; i < n; ++i) ones[i] = __popc(words[i] = mixed(keys[i]));
    }
}
