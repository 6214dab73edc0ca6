// Probabilities of tokens: a softmax of the logits over the whole vocabulary. All kernels and the host compute the same bits: sums are
// in fixed point, so the order of additions does not matter.
#pragma once
#include "rank.cuh"

#define MOST_TOP 20 // `welte_device::Logprobs::MOST`
#define INFINITE __int_as_float(0x7f800000)

// In the host's memory.
struct LogprobAnswer {
    u64 head;          // serial number of a chain's token, or 0; and the number of likeliest tokens
    u64 token;         // the token and the bits of its logarithm
    u64 top[MOST_TOP]; // the same of the likeliest tokens
};

__device__ __forceinline__ u64 pair_of(u32 high, u32 low) { return (u64)high << 32 | low; }

// NaN counts as minus infinity.
__device__ __forceinline__ float number(float v) { return v == v ? v : -INFINITE; }

// The softmax of a row. `shift`: fraction bits of a term of `sum`.
struct Softmax {
    float largest;
    u32 shift;
    u64 sum; // of exp(logit - largest)

    // If no logit is finite, or one is plus infinity, no token has a probability.
    __device__ __forceinline__ bool is_possible() const { return fabsf(largest) < INFINITE; }

    __device__ __forceinline__ u64 term(float v) const {
        return is_possible() ? (u64)(expf(__fsub_rn(v, largest)) * (float)(1ull << shift)) : 0;
    }

    __device__ __forceinline__ double log_sum() const { return is_possible() ? log((double)sum / (double)(1ull << shift)) : 0.0; }

    // The bits of the logarithm of a token's probability.
    __device__ __forceinline__ u32 logprob(float v, double log_sum) const {
        return __float_as_uint(is_possible() ? (float)((double)__fsub_rn(v, largest) - log_sum) : -INFINITE);
    }
};

__device__ __forceinline__ u64 warp_max(u64 v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        u64 w = __shfl_xor_sync(~0u, v, o);
        v = w > v ? w : v;
    }
    return v;
}

__device__ __forceinline__ u64 warp_sum(u64 v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
