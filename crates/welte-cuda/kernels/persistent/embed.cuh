// The embedding of a token, and the inputs that each layer adds (Gemma 4).
#pragma once
#include "persistent/exchange.cuh"
#include "persistent/stream.cuh"

template <class V> constexpr u32 EMBEDDING_BLOCKS = (V::k + 31) / 32; // of 32 elements

// A lane's element of one block of an embedding. Beyond the end it is 0.
template <class V> __device__ __forceinline__ float embedded(const Instruction &in, u32 token, u32 block) {
    using F = typename V::Format;
    using L = RowLayout<V>;
    u32 lane = threadIdx.x % 32;
    const u8 *p[MOST_PLANES];
#pragma unroll
    for (int i = 0; i < F::PLANES; i++) p[i] = (const u8 *)in.weight + (u64)V::n * L::before(i) + (u64)token * L::stride(i);
    float v = 0.0f;
    u32 at = block * 32 + lane;
    if constexpr (F::BLOCKS) {
        Block32 b = F::load(p, block);
        u32 word = 0;
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (lane / 4 == j) word = b.q[j];
        float q = (float)(i8)(word >> 8 * (lane % 4));
        v = fmaf(lane < 16 ? b.d[0] : b.d[1], q, lane < 16 ? b.m[0] : b.m[1]);
    } else if (at < V::k) {
        float eight[8];
        F::load8(p, at / 8, eight);
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (lane % 8 == j) v = eight[j];
    }
    return v;
}

// The feature that a row reads in place of its token; null if it reads none.
template <class V> __device__ __forceinline__ const float *given_to(const float *features, u32 feature) {
    return V::features && feature != NO_FEATURE ? features + (u64)feature * V::features : nullptr;
}

// One block of an embedding, or of the feature that is given, by a warp.
template <class V> __device__ __forceinline__ void embed_block(float *x, const Instruction &in, u32 tag, u32 token, const float *given, u32 block, bool stalled) {
    u32 at = block * 32 + threadIdx.x % 32;
    if (given) {
        if (at < V::k && !stalled) publish(x + at, given[at], tag);
        return;
    }
    float v = embedded<V>(in, token, block);
    if (at < V::k && !stalled) publish(x + at, V::scale * v, tag);
}

template <class V>
__device__ __forceinline__ void embed(WaitContext &w, float *exchange, const Instruction &in, u32 turn, u32 token, const float *given, bool stalled) {
    u32 tag = tag_of(turn, in.writes_per_turn, in.writes);
    STAMP(0);
    for (u32 block = blockIdx.x + threadIdx.x / 32 * gridDim.x; block < EMBEDDING_BLOCKS<V>; block += gridDim.x * WARPS)
        embed_block<V>(exchange + in.output, in, tag, token, given, block, stalled);
    STAMP(3);
}

// The inputs of all layers: (scaled embedding + norm of the projection) * a factor. `in.input` is the projection. A warp makes those of a
// layer, V::width of them.
template <class V> __device__ __forceinline__ void layer_inputs(WaitContext &w, float *exchange, const Instruction &in, u32 turn, u32 token, bool stalled) {
    constexpr u32 EACH = V::width / 32;
    static_assert(V::width % 32 == 0 && V::k % V::width == 0, "whole blocks of an embedding");
    u32 lane = threadIdx.x % 32, tag = tag_of(turn, in.reads_per_turn, in.reads), written = tag_of(turn, in.writes_per_turn, in.writes);
    STAMP(0);
    for (u32 layer = blockIdx.x + threadIdx.x / 32 * gridDim.x; layer < V::k / V::width; layer += gridDim.x * WARPS) {
        const float *from = exchange + in.input + layer * V::width + lane, *norm = (const float *)in.vectors[0] + lane;
        float table[EACH], v[EACH], sum = 0.0f;
        u32 got[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) table[i] = V::scale * embedded<V>(in, token, layer * EACH + i);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) got[i] = peek(from + i * 32);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            v[i] = await_value(w, from + i * 32, got[i], tag);
            sum = fmaf(v[i], v[i], sum);
        }
        float factor = rsqrtf(warp_sum(sum) * (1.0f / (float)V::width) + V::eps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (!stalled) publish(exchange + in.output + layer * V::width + i * 32 + lane, V::factor * fmaf(factor * v[i], __ldg(norm + i * 32), table[i]), written);
    }
    STAMP(3);
}
