// Probabilities of tokens: a softmax of the logits over the whole vocabulary, and the likeliest tokens. One block answers a query,
// so the order of additions does not depend on other queries.
#include "common.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define MOST_TOP 20     // `welte_device::Logprobs::MOST`
#define MOST_QUERIES 32 // of a launch
#define INFINITE __int_as_float(0x7f800000)

struct LogprobAnswer {
    float logprob;
    u32 count;
    u32 tokens[MOST_TOP];
    float logprobs[MOST_TOP];
};

struct LogprobArgs {
    const float *logits; // of the first output row
    LogprobAnswer *answers; // in the host's memory
    u32 n;
    u32 stride; // from one row's logits to the next
    u32 queries[MOST_QUERIES * 3]; // output row, token, and the number of likeliest tokens
};

#include "generated.cuh"

struct Shared {
    u64 ranks[WARPS];
    float maxima[WARPS];
    double sums[WARPS];
};

// Not a number counts as minus infinity.
__device__ __forceinline__ float number(float v) { return v == v ? v : -INFINITE; }

// The rank of a value: larger for larger values, then for lower indices. Both zeros are equal.
__device__ __forceinline__ u64 ranked(float v, u32 index) {
    u32 bits = __float_as_uint(v + 0.0f);
    return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (0xffffffffu - index);
}

__device__ __forceinline__ u64 warp_max(u64 v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        u64 w = __shfl_xor_sync(~0u, v, o);
        v = w > v ? w : v;
    }
    return v;
}

__device__ u64 block_max(Shared &sh, u64 v) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sh.ranks[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(sh.ranks[threadIdx.x % 32]);
}

__device__ float largest_of(Shared &sh, const float *row, u32 n) {
    float m = -INFINITE;
    for (u32 i = threadIdx.x; i < n; i += THREADS) m = fmaxf(m, number(row[i]));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) sh.maxima[threadIdx.x / 32] = m;
    __syncthreads();
    m = -INFINITE;
    for (u32 w = 0; w < WARPS; ++w) m = fmaxf(m, sh.maxima[w]);
    return m;
}

// The logarithm of the sum of exp(value - largest).
__device__ double log_sum(Shared &sh, const float *row, u32 n, float largest) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < n; i += THREADS) sum += (double)expf(__fsub_rn(number(row[i]), largest));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) sh.sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0;
    for (u32 w = 0; w < WARPS; ++w) sum += sh.sums[w];
    return log(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) logprobs(const __grid_constant__ LogprobArgs a) {
    __shared__ Shared sh;
    grid_release();
    grid_wait();
    const u32 *query = a.queries + blockIdx.x * 3;
    const float *row = a.logits + (u64)query[0] * a.stride;
    LogprobAnswer *answer = a.answers + blockIdx.x;
    u32 t = threadIdx.x, lane = t % 32, wanted = min(query[2], min(a.n, (u32)MOST_TOP));
    float largest = largest_of(sh, row, a.n);
    bool possible = fabsf(largest) < INFINITE;
    double sum = possible ? log_sum(sh, row, a.n, largest) : 0.0;
    if (t == 0) {
        float v = number(row[query[1]]);
        answer->logprob = possible ? (float)((double)__fsub_rn(v, largest) - sum) : -INFINITE;
        answer->count = wanted;
    }
    // Each thread knows the best of its elements that is not among the answers yet.
    u64 best = 0;
    if (wanted) {
        for (u32 i = t; i < a.n; i += THREADS) {
            u64 rank = ranked(number(row[i]), i);
            best = rank > best ? rank : best;
        }
    }
    for (u32 k = 0; k < wanted; ++k) {
        u64 winner = block_max(sh, best);
        u32 index = 0xffffffffu - (u32)winner, owner = index % THREADS;
        if (t == 0) {
            float v = number(row[index]);
            answer->tokens[k] = index;
            answer->logprobs[k] = possible ? (float)((double)__fsub_rn(v, largest) - sum) : -INFINITE;
        }
        // The owner's warp finds the owner's next best.
        if (t / 32 == owner / 32) {
            u64 next = 0;
            for (u32 i = owner + lane * THREADS; i < a.n; i += 32 * THREADS) {
                u64 rank = ranked(number(row[i]), i);
                if (rank < winner && rank > next) next = rank;
            }
            next = warp_max(next);
            if (t == owner) best = next;
        }
    }
}
