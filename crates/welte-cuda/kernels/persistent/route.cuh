// The choice of experts. Every block makes it for itself, from the router's logits in the exchange: all choices have the same bits, and no
// block waits for another one's. The block's first warp makes it, and hands it to the streaming warp.
//
// Memory order. Thread 0 arrives at s->chosen (release) after the warp has written the choice. The streaming warp waits for that phase
// (acquire), reads the numbers, and then announces the bytes of a slot at its barrier (release). A consumer that has waited for this slot
// (acquire) may read the choice. So nobody reads a choice before it is complete.
// The two places of choices are used in turn. Before a place is written again, the consumers have multiplied with all experts of its old
// choice, so the streaming warp has read it; and they have met in the products of the choice after it, so no consumer reads it any more.
#pragma once
#include "persistent/exchange.cuh"

#if CHOSEN
// A word that is larger for larger floats.
__device__ __forceinline__ u32 order_of(float v) {
    u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A lane has V::experts / 32 neighbouring experts, rounded up.
template <class V> __device__ __forceinline__ void route(WaitContext &w, Shared *s, const float *exchange, const Instruction &in, u32 turn, u32 nth) {
    constexpr u32 EACH = (V::experts + 31) / 32;
    constexpr bool BY_LOGITS = V::scoring == 0 && !V::bias;
    static_assert(V::used <= CHOSEN && V::used <= 32, "a lane for each chosen expert");
    u32 lane = opaque(threadIdx.x);
    if (lane >= 32) return;
    STAMP(0);
    Choice &choice = s->choices[nth & 1];
    u32 first = lane * EACH, mine = first < V::experts ? min(EACH, V::experts - first) : 0, tag = tag_of(turn, in.reads_per_turn, in.reads);
    const float *x = exchange + in.input + first, *bias = (const float *)in.vectors[0], *scales = (const float *)in.vectors[1];
    u32 got[EACH];
    WaitState wait;
    for (;;) {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            got[i] = i < mine ? peek(x + i) : tag;
            all &= fresh(got[i], tag);
        }
        if (__all_sync(~0u, all) || !__all_sync(~0u, keep_waiting(w, wait, PLACE_INPUT))) break;
    }
    STAMP(1);
    auto logit = [&](u32 i) { return V::logit_scale == 1.0f ? value(got[i]) : value(got[i]) * V::logit_scale; };
    float largest = __uint_as_float(0xff800000u), sum = 0.0f; // minus infinity
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        if (i < mine) largest = fmaxf(largest, logit(i));
    largest = warp_max(largest);
    if (!V::renormalise || !BY_LOGITS) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (i < mine) sum += expf(logit(i) - largest);
        sum = warp_sum(sum);
    }
    auto score = [&](float v) {
        if (V::scoring) return 1.0f / (1.0f + expf(-v));
        return V::renormalise && BY_LOGITS ? expf(v - largest) : expf(v - largest) / sum;
    };
    u32 ranks[EACH]; // 0: chosen already, or no expert
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        float v = logit(i);
        ranks[i] = 0;
        if (i < mine) ranks[i] = order_of(BY_LOGITS ? v : score(v) + (V::bias ? __ldg(bias + first + i) : 0.0f));
    }
#pragma unroll 1
    for (u32 n = 0; n < V::used; n++) {
        u32 best = 0, at = 0;
        float v = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (ranks[i] > best) best = ranks[i], at = i, v = logit(i);
        // The lowest lane has the lowest numbers.
        u32 owner = __ffs(__ballot_sync(~0u, best == warp_largest(best))) - 1;
        if (lane == owner) {
            choice.experts[n] = min(first + at, V::experts - 1);
            choice.shares[n] = score(v);
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (i == at) ranks[i] = 0;
        }
    }
    __syncwarp();
    float share = lane < V::used ? choice.shares[lane] : 0.0f, by = V::scale;
    if (V::renormalise) by /= fmaxf(warp_sum(share), 1e-20f);
    if (lane < V::used) choice.shares[lane] = share * (scales ? by * __ldg(scales + choice.experts[lane]) : by);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&s->chosen));
    STAMP(3);
}
#endif
