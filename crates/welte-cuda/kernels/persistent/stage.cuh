// The input of a product: each warp waits for its slice of the vector, multiplies it with the norm's weights, and puts it into
// shared memory as the product wants it. Nobody waits for another warp.
//
// Activations of block formats are rounded to int8 per 32 as the graph's kernels do it (quantise.cuh).
#pragma once
#include "persistent/part.cuh"

// A staged slice lies in pieces of 16 bytes, so that neighbouring lanes read neighbouring pieces. Blocks: bytes 0..16 of all
// blocks, bytes 16..32, then what belongs to them. Floats: as pieces of 4, even and odd.
template <class V, u32 ROUNDS> __device__ __forceinline__ void put(u8 *slice, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
    constexpr u32 UNITS = Part<V>::EACH;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = lane + 32 * r;
        if (quad < quads) *(float4 *)(slice + (quad % 2 * UNITS + quad / 2) * 16) = make_float4(v[r][0], v[r][1], v[r][2], v[r][3]);
    }
}

// Quads of blocks, rounded: four bytes each, and what belongs to their block: its scale, the sums of its halves and of all.
template <u32 ROUNDS> struct Rounded {
    u32 q[ROUNDS];
    float4 side[ROUNDS];

    // Eight neighbouring lanes have a block. Each step is done for all rounds before the next: they do not wait for each other.
    __device__ __forceinline__ explicit Rounded(const float (&v)[ROUNDS][4]) {
        float most[ROUNDS];
        int sum[ROUNDS];
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) most[r] = max_nan(max_nan(fabsf(v[r][0]), fabsf(v[r][1])), max_nan(fabsf(v[r][2]), fabsf(v[r][3])));
#pragma unroll
        for (u32 o = 1; o < 8; o <<= 1)
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) most[r] = max_nan(most[r], __shfl_xor_sync(~0u, most[r], o));
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            float inverse = most[r] <= TINY ? 0.0f : 127.0f * reciprocal(most[r]);
            // 1.5 * 2^23: the sum's last byte is the rounded integer.
            u32 b[4];
#pragma unroll
            for (int j = 0; j < 4; j++) b[j] = __float_as_uint(fmaf(v[r][j], inverse, 12582912.0f));
            q[r] = __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
            sum[r] = __dp4a((int)q[r], 0x01010101, 0);
        }
#pragma unroll
        for (u32 o = 1; o < 4; o <<= 1)
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) sum[r] += __shfl_xor_sync(~0u, sum[r], o);
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            // NaN is not below TINY: it makes the scale, and so every output of the row, NaN. So does infinity, times nought.
            float scale = most[r] <= TINY ? 0.0f : most[r] * (1.0f / 127.0f);
            float low = scale * (float)sum[r], high = scale * (float)__shfl_xor_sync(~0u, sum[r], 4);
            side[r] = make_float4(scale, low, high, low + high);
        }
    }
};

template <class V, u32 ROUNDS> __device__ __forceinline__ void put_rounded(u8 *slice, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
    constexpr u32 UNITS = Part<V>::EACH;
    Rounded<ROUNDS> rounded(v);
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 quad = lane + 32 * r, block = quad / 8, e = quad % 8;
        if (quad < quads) *(u32 *)(slice + (e / 4 * UNITS + block) * 16 + e % 4 * 4) = rounded.q[r];
        if (quad < quads && e == 0) *(float4 *)(slice + (2 * UNITS + block) * 16) = rounded.side[r];
    }
}

// What a warp's slice is taken in by: quads of 32 lanes, round by round.
template <class V> struct Intake {
    using P = Part<V>;
    static constexpr u32 QUADS = P::EACH * P::UNIT / 4, ROUNDS = (QUADS + 31) / 32;
    u32 first, quads;
    float4 weights[V::norm ? ROUNDS : 1];

    __device__ __forceinline__ void begin(const Instruction &in, u32 warp, u32 lane) {
        first = warp * P::EACH * P::UNIT, quads = P::units(warp) * P::UNIT / 4;
        if constexpr (V::norm) {
            const float *norm = (const float *)in.vectors[0];
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) {
                weights[r] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
                if (norm && lane + 32 * r < quads) weights[r] = __ldg((const float4 *)(norm + first) + lane + 32 * r);
            }
        }
    }

    __device__ __forceinline__ void weigh(const uint4 (&got)[ROUNDS], u32 lane, float (&v)[ROUNDS][4], float *squares) const;
};

// This warp's slice of `x` into `slice`, times the norm's weights; the norm's factor is for the results. Leaves the slice's sum
// of squares in `squares`.
template <class V> __device__ __forceinline__ void stage(Watch &w, const Instruction &in, const float *x, u32 tag, u8 *slice, u32 warp, u32 lane, float *squares) {
    constexpr u32 ROUNDS = Intake<V>::ROUNDS;
    Intake<V> intake;
    intake.begin(in, warp, lane);
    uint4 got[ROUNDS];
    if (warp == 0 && lane == 0) w.s->signals.hungry = V::attended ? FOR_INPUT | FOR_ATTENTION : FOR_INPUT;
    receive<ROUNDS>(w, x + intake.first, tag, lane, intake.quads, got);
    if (warp == 0 && lane == 0) w.s->signals.hungry = 0;
    float v[ROUNDS][4];
    intake.weigh(got, lane, v, squares);
    if constexpr (V::Format::BLOCKS) put_rounded<V>(slice, lane, intake.quads, v);
    else put<V>(slice, lane, intake.quads, v);
    __syncwarp();
}

// The values, times the norm's weights; the sum of their squares into `squares`.
template <class V> __device__ __forceinline__ void Intake<V>::weigh(const uint4 (&got)[ROUNDS], u32 lane, float (&v)[ROUNDS][4], float *squares) const {
    float sum = 0.0f;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        bool live = lane + 32 * r < quads;
        v[r][0] = live ? value(got[r].x) : 0.0f, v[r][1] = live ? value(got[r].y) : 0.0f;
        v[r][2] = live ? value(got[r].z) : 0.0f, v[r][3] = live ? value(got[r].w) : 0.0f;
        if constexpr (V::norm) {
            float g[4] = {weights[r].x, weights[r].y, weights[r].z, weights[r].w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum = fmaf(v[r][i], v[r][i], sum);
                v[r][i] *= g[i];
            }
        }
    }
    if constexpr (V::norm) {
        sum = warp_sum(sum);
        if (lane == 0) *squares = sum;
    }
}
