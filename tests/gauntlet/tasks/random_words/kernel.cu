/*
[[launch]]
kernel = "random_words"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["keys", "words", "ones", "n"]
*/
extern "C" __global__ void random_words(const unsigned* keys, unsigned* words, unsigned char* ones, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned h = keys[i];
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    h ^= h >> 16;
    words[i] = h;
    unsigned char count = 0;
    for (int bit = 0; bit < 32; ++bit) count += h >> bit & 1;
    ones[i] = count;
}
