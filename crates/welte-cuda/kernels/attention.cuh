// Shared by the attention kernels. A row attends to positions first ..= last of its own sequence.
#pragma once
#include "kv.cuh"
#include "softmax.cuh"

struct AttentionArgs {
    const Step *step;
    const float *q;
    float *y;
    Kv kv;
    float *partials; // [row][head][split][HEAD_DIM] sums, then [row][head][split] maximum and sum of weights
    u32 *counters;   // [row][group of heads], zero between kernels
    const float *sinks; // a score per head without a value; may be null
    u32 heads;
    u32 q_stride;
    u32 y_stride;
    float scale;
    u32 window;
    float softcap;
    u32 single; // not 0: only one row is live
    u32 splits; // flash decoding: the most of a context
    u32 rows;   // flash decoding: rows that `partials` has room for
    u32 first;  // flash decoding: row to start with
    u32 most;   // flash decoding: rows from there on
    u32 causal; // not 0: rows see nothing after themselves, whatever their reach
    u32 positions; // not 0: every row sees as many, whatever its own
    u32 chunked; // not 0: a window begins at a multiple of its size
};

__device__ __forceinline__ u32 last_position(const AttentionArgs &a, const Row &row) { return a.causal ? row.position : row.reach; }

__device__ __forceinline__ u32 first_position(const AttentionArgs &a, u32 position) {
    if (a.chunked) return position - position % a.window;
    return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
}

// Without a cap, q already contains the scale and the change of base.
__device__ __forceinline__ float q_factor(const AttentionArgs &a) {
    return a.softcap == 0.0f ? a.scale * LOG2E : a.scale;
}

__device__ __forceinline__ float capped(const AttentionArgs &a, float score) {
    return a.softcap == 0.0f ? score : a.softcap * LOG2E * tanhf(score / a.softcap);
}

// What a head's sink adds to its sum of weights, which are relative to the score `largest`.
__device__ __forceinline__ float sink_weight(const float *sinks, u32 head, float largest) {
    return sinks ? exp2f(sinks[head] * LOG2E - largest) : 0.0f;
}

// Splits two floats into the nearest f16 and the f16 nearest to the remainder.
__device__ __forceinline__ void pack_both(float a, float b, u32 &high, u32 &low) {
    __half2 h = __floats2half2_rn(a, b);
    float2 f = __half22float2(h);
    high = *(u32 *)&h;
    low = pack(a - f.x, b - f.y);
}

// Eight values of a Q8_0 row from `chunk` * 8 on, as f16. Blocks of 34 bytes begin at even addresses, so aligned words are
// read and shifted into place.
__device__ __forceinline__ uint4 widen8(u32 low, u32 high, __half scale);
__device__ __forceinline__ uint4 q8_chunk(const u8 *row, u32 chunk) {
    const u8 *block = row + chunk / 4 * 34, *q = block + 2 + chunk % 4 * 8;
    u32 half = (u32)(u64)q & 2;
    const u32 *w = (const u32 *)(q - half);
    u32 a = w[0], b = w[1], c = half ? *(const u16 *)(w + 2) : 0, how = half ? 0x5432 : 0x3210;
    return widen8(__byte_perm(a, b, how), __byte_perm(b, c, how), *(const __half *)block);
}

// Eight signed bytes times a scale, as f16. Placed in the mantissa, a byte becomes 1024 + (q + 128).
__device__ __forceinline__ uint4 widen8(u32 low, u32 high, __half scale) {
    const __half2 offset = __half2half2(__ushort_as_half(0x6480)), d = __half2half2(scale); // 1152
    u32 w[2] = {low ^ 0x80808080u, high ^ 0x80808080u};
    u32 r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 h = __byte_perm(w[i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140);
        __half2 v = __hmul2(__hsub2(*(__half2 *)&h, offset), d);
        r[i] = *(u32 *)&v;
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
}
