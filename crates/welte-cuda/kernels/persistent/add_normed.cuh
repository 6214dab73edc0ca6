// Norms after a part: x += norm(v), where v is the part's output. Every block does this for the whole vector, because every block needs
// all of x for its next product. From the first such sum of a turn on, x is in shared memory only: every block has its own copy, the
// *hidden vector*, and all copies have the same bits. No block waits for another one's sum.
#pragma once
#include "persistent/exchange.cuh"

// Loads quads of the hidden vector, as request() does from the exchange.
template <u32 ROUNDS, u32 LANES> __device__ __forceinline__ void read_hidden(const Shared *s, u32 first, u32 lane, u32 quads, uint4 (&got)[ROUNDS]) {
#if HIDDEN
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        got[r] = make_uint4(0, 0, 0, 0);
        if (lane + LANES * r < quads) got[r] = *(const uint4 *)(s->hidden + first + 4 * (lane + LANES * r));
    }
#endif
}

#if HIDDEN
// `in.input` is v, and `in.output` x, as long as it is in the exchange (V::local false).
template <class V> __device__ __forceinline__ void add_normed(WaitContext &w, Shared *s, const float *exchange, const Instruction &in, u32 turn, u32 parity) {
    constexpr u32 QUADS = V::n / 4, ROUNDS = (QUADS + CONSUMERS - 1) / CONSUMERS;
    static_assert(V::n % 4 == 0 && V::n <= HIDDEN, "it has the vector");
    u32 tid = opaque(threadIdx.x);
    STAMP(0);
    float4 weights[ROUNDS];
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = tid + CONSUMERS * r;
        weights[r] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        if (in.vectors[0] && quad < QUADS) weights[r] = __ldg((const float4 *)in.vectors[0] + quad);
    }
    uint4 x[ROUNDS], v[ROUNDS];
    if constexpr (V::local) read_hidden<ROUNDS, CONSUMERS>(s, 0, tid, QUADS, x);
    else receive<ROUNDS, CONSUMERS>(w, exchange + in.output, tag_of(turn, in.writes_per_turn, in.writes), tid, QUADS, x);
    if (tid == 0) s->signals.awaiting = AWAITS_INPUT;
    receive<ROUNDS, CONSUMERS>(w, exchange + in.input, tag_of(turn, in.reads_per_turn, in.reads), tid, QUADS, v);
    if (tid == 0) s->signals.awaiting = 0;
    STAMP(1);
    float sum = 0.0f;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        if (tid + CONSUMERS * r >= QUADS) continue;
        float a = value(v[r].x), b = value(v[r].y), c = value(v[r].z), d = value(v[r].w);
        sum = fmaf(a, a, fmaf(b, b, fmaf(c, c, fmaf(d, d, sum))));
    }
    sum = warp_sum(sum);
    if (tid % 32 == 0) s->squares[parity][tid / 32] = sum;
    // Behind this meeting no warp reads the old vector any more.
    consumers_meet();
    float factor = V::scale;
    if constexpr (V::norm) {
        float all = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) all += s->squares[parity][i];
        factor *= rsqrtf(all * (1.0f / (float)V::n) + V::eps);
    }
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = tid + CONSUMERS * r;
        if (quad >= QUADS) continue;
        float4 g = weights[r];
        *(float4 *)(s->hidden + 4 * quad) = make_float4(fmaf(factor * g.x, value(v[r].x), value(x[r].x)), fmaf(factor * g.y, value(v[r].y), value(x[r].y)),
                                                        fmaf(factor * g.z, value(v[r].z), value(x[r].z)), fmaf(factor * g.w, value(v[r].w), value(x[r].w)));
    }
    consumers_meet();
    STAMP(3);
}
#endif
