// Norms after a part: x += norm(v), where v is the part's output. Every block does this for the whole vector, because every block needs
// all of x for its next product. With V::beside there are two parts: x += norm(norm(v) + norm(u)). Then a layer may scale x. From the first
// such sum of a turn on, x is in shared memory only: every block has its own copy, the *hidden vector*, and all copies have the same bits.
// No block waits for the sum of another.
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
// A thread's quads of a norm's weights.
template <class V, u32 ROUNDS> __device__ __forceinline__ void load_norm(u64 norm, u32 tid, float4 (&weights)[ROUNDS]) {
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = tid + CONSUMERS * r;
        weights[r] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        if (norm && quad < V::n / 4) weights[r] = __ldg((const float4 *)norm + quad);
    }
}

// The factor of a norm, from each thread's sum of squares. The consumers meet.
template <class V> __device__ __forceinline__ float meet_for_norm(Shared *s, u32 set, float sum, float eps) {
    u32 tid = opaque(threadIdx.x);
    sum = warp_sum(sum);
    if (tid % 32 == 0) s->squares[set][tid / 32] = sum;
    consumers_meet();
    float all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) all += s->squares[set][i];
    return rsqrtf(all * (1.0f / (float)V::n) + eps);
}

__device__ __forceinline__ float4 floats_of(uint4 v) { return make_float4(value(v.x), value(v.y), value(v.z), value(v.w)); }
__device__ __forceinline__ float add_squares(float4 v, float sum) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum)))); }

// The sum of two normed parts. `set` and the other set of squares are used in turn: between two uses of one all warps have read it.
template <class V, u32 ROUNDS>
__device__ __forceinline__ void join_parts(WaitContext &w, Shared *s, const float *exchange, const Instruction &more, u32 turn, u32 set, u32 tid, const uint4 (&v)[ROUNDS], float4 (&sum)[ROUNDS]) {
    constexpr u32 QUADS = V::n / 4;
    float4 weights[ROUNDS];
    uint4 u[ROUNDS];
    receive<ROUNDS, CONSUMERS>(w, exchange + more.input, tag_of(turn, more.reads_per_turn, more.reads), tid, QUADS, u);
    auto add = [&](const uint4 (&part)[ROUNDS], u32 nth, float eps) {
        load_norm<V>(more.vectors[nth], tid, weights);
        float squares = 0.0f;
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++)
            if (tid + CONSUMERS * r < QUADS) squares = add_squares(floats_of(part[r]), squares);
        float factor = meet_for_norm<V>(s, set ^ nth, squares, eps);
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            float4 x = floats_of(part[r]), g = weights[r];
            sum[r] = make_float4(fmaf(factor * g.x, x.x, sum[r].x), fmaf(factor * g.y, x.y, sum[r].y), fmaf(factor * g.z, x.z, sum[r].z), fmaf(factor * g.w, x.w, sum[r].w));
        }
    };
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    add(v, 0, V::eps_first);
    add(u, 1, V::eps_second);
}

// `in.input` is v, and `in.output` x, as long as it is in the exchange (V::local false). With V::beside the next instruction has u, and the
// norms of v and of u. With V::rescales `in.flags` are the bits of the factor of x.
template <class V> __device__ __forceinline__ void add_normed(WaitContext &w, Shared *s, const float *exchange, const Instruction &in, u32 turn, u32 parity) {
    constexpr u32 QUADS = V::n / 4, ROUNDS = (QUADS + CONSUMERS - 1) / CONSUMERS;
    static_assert(V::n % 4 == 0 && V::n <= HIDDEN, "it has the vector");
    u32 tid = opaque(threadIdx.x);
    STAMP(0);
    float4 weights[ROUNDS];
    load_norm<V>(in.vectors[0], tid, weights);
    uint4 x[ROUNDS], v[ROUNDS];
    if constexpr (V::local) read_hidden<ROUNDS, CONSUMERS>(s, 0, tid, QUADS, x);
    else receive<ROUNDS, CONSUMERS>(w, exchange + in.output, tag_of(turn, in.writes_per_turn, in.writes), tid, QUADS, x);
    if (tid == 0) s->signals.awaiting = AWAITS_INPUT;
    receive<ROUNDS, CONSUMERS>(w, exchange + in.input, tag_of(turn, in.reads_per_turn, in.reads), tid, QUADS, v);
    if (tid == 0) s->signals.awaiting = 0;
    float4 joined[ROUNDS];
    if constexpr (V::beside) join_parts<V>(w, s, exchange, (&in)[1], turn, parity, tid, v, joined);
    auto part = [&](u32 r) {
        if constexpr (V::beside) return joined[r];
        else return floats_of(v[r]);
    };
    STAMP(1);
    float sum = 0.0f;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        if (tid + CONSUMERS * r >= QUADS) continue;
        sum = add_squares(part(r), sum);
    }
    // After this barrier no warp reads the old vector.
    float factor = V::scale * meet_for_norm<V>(s, parity, sum, V::eps);
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = tid + CONSUMERS * r;
        if (quad >= QUADS) continue;
        float4 g = weights[r], p = part(r);
        float4 y = make_float4(fmaf(factor * g.x, p.x, value(x[r].x)), fmaf(factor * g.y, p.y, value(x[r].y)), fmaf(factor * g.z, p.z, value(x[r].z)), fmaf(factor * g.w, p.w, value(x[r].w)));
        if constexpr (V::rescales) {
            float by = __uint_as_float(in.flags);
            y = make_float4(y.x * by, y.y * by, y.z * by, y.w * by);
        }
        *(float4 *)(s->hidden + 4 * quad) = y;
    }
    consumers_meet();
    STAMP(3);
}
#endif
