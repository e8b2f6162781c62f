/*
[[launch]]
kernel = "attention"
grid = ["seq", "heads"]
block = ["BLOCK"]
shared = "4 * seq"
args = ["q", "k", "v", "out", "seq", "dim"]
*/
#include <cuda_bf16.h>

#define BLOCK 128 // a power of two

// One block per query: a warp for each key's score, softmax over the scores, a thread for each element of the output.
extern "C" __global__ void attention(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
                                     __nv_bfloat16* out, int seq, int dim) {
    extern __shared__ float weights[];
    __shared__ float partial[BLOCK];
    int tid = threadIdx.x;
    int lane = tid % 32;
    int query = blockIdx.x;
    int first = blockIdx.y * seq; // of the head's rows
    float scale = rsqrtf(dim);

    for (int key = tid / 32; key <= query; key += BLOCK / 32) {
        float score = 0.0f;
        for (int i = lane; i < dim; i += 32) {
            score += __bfloat162float(q[(first + query) * dim + i]) * __bfloat162float(k[(first + key) * dim + i]);
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            score += __shfl_xor_sync(0xffffffff, score, offset);
        }
        if (lane == 0) {
            weights[key] = score * scale;
        }
    }
    __syncthreads();

    float largest = weights[0];
    for (int key = tid; key <= query; key += BLOCK) {
        largest = fmaxf(largest, weights[key]);
    }
    partial[tid] = largest;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (tid < stride) {
            partial[tid] = fmaxf(partial[tid], partial[tid + stride]);
        }
        __syncthreads();
    }
    largest = partial[0];
    __syncthreads();

    float sum = 0.0f;
    for (int key = tid; key <= query; key += BLOCK) {
        weights[key] = expf(weights[key] - largest);
        sum += weights[key];
    }
    partial[tid] = sum;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (tid < stride) {
            partial[tid] += partial[tid + stride];
        }
        __syncthreads();
    }

    for (int i = tid; i < dim; i += BLOCK) {
        float total = 0.0f;
        for (int key = 0; key <= query; ++key) {
            total += weights[key] * __bfloat162float(v[(first + key) * dim + i]);
        }
        out[(first + query) * dim + i] = __float2bfloat16(total / partial[0]);
    }
}
