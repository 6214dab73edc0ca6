// Causal convolutions of channels over their own sequence (conv.cu). One thread of the GPU has a channel: it reads the last inputs from
// the sequence's state and writes them back shifted. The same thread does so in every turn, so program order is enough.
//
// The channels of a delta rule or of a state space model are rows of a product, so their convolution belongs to the thread that has the
// row's result (product.cuh). Those of a layer that mixes by a convolution alone have gates before and after, from other rows: an
// instruction of its own.
#pragma once
#include "persistent/exchange.cuh"

// The sequence of a launch's row, for instructions with state.
struct Sequence {
    const Kv *caches;
    u32 position;
};

// The state's page of the sequence.
__device__ __forceinline__ u32 state_page(const Shared *s, u32 cache) { return s->pages[cache * MAX_PAGES]; }

// One channel of V::conv_n. `in` has the kernel ([channel][tap], the last tap for the turn's input) and the bias.
template <class V> struct Channel {
    static constexpr u32 KEPT = V::taps - 1;
    float *state; // [taps - 1][channel] of the sequence in this layer, oldest input first
    float x[KEPT], taps[V::taps], bias;

    __device__ __forceinline__ void load(const Shared *s, const Sequence &sequence, const Instruction &in, u32 c) {
        const Kv &cache = sequence.caches[V::conv_cache];
        state = (float *)cache.start + ((u64)in.layer * cache.total + state_page(s, V::conv_cache)) * (KEPT * V::conv_n) + c;
#pragma unroll
        for (u32 j = 0; j < KEPT; j++) {
            x[j] = 0.0f;
            // Inputs before position 0 are zero, even if the state holds other numbers.
            if (sequence.position + j >= KEPT) x[j] = state[j * V::conv_n];
        }
        const float *kernel = (const float *)in.weight + c * V::taps, *biases = (const float *)in.vectors[0];
#pragma unroll
        for (u32 j = 0; j < V::taps; j++) taps[j] = __ldg(kernel + j);
        bias = biases ? __ldg(biases + c) : 0.0f;
    }

    // The result for this turn's input, which becomes the last one of the state.
    __device__ __forceinline__ float next(float own) {
        float sum = bias;
#pragma unroll
        for (u32 j = 0; j < KEPT; j++) sum = fmaf(taps[j], x[j], sum);
        sum = fmaf(taps[KEPT], own, sum);
#pragma unroll
        for (u32 j = 0; j < KEPT; j++) state[j * V::conv_n] = j + 1 < KEPT ? x[j + 1] : own;
        return V::conv_act == 1 ? activate(0, sum) : sum;
    }
};

// y = c * conv(b * v): the gates b and c and the values v are parts of the input. The blocks share out the channels.
template <class V>
__device__ __forceinline__ void gated_conv(WaitContext &w, const Shared *s, float *exchange, const Instruction &in, const Sequence &sequence, u32 turn, bool stalled) {
    u32 each = (V::conv_n + gridDim.x - 1) / gridDim.x, first = opaque(blockIdx.x) * each, end = min(first + each, V::conv_n);
    u32 tag = tag_of(turn, in.reads_per_turn, in.reads);
    STAMP(0);
    for (u32 c = first + opaque(threadIdx.x); c < end; c += CONSUMERS) {
        Channel<V> channel;
        channel.load(s, sequence, in, c);
        const float *x = exchange + in.input + c;
        u32 before = peek(x + V::before_at), value_of = peek(x + V::value_at), after = peek(x + V::after_at);
        float own = await_value(w, x + V::before_at, before, tag) * await_value(w, x + V::value_at, value_of, tag);
        float y = channel.next(own) * await_value(w, x + V::after_at, after, tag);
        if (!stalled) publish(exchange + in.output + c, y, tag_of(turn, in.writes_per_turn, in.writes));
    }
    __syncwarp();
    STAMP(3);
}
