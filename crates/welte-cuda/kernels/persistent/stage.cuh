// The input of a product: each warp waits for its slice of the vector, multiplies it by the norm's weights, and stores it in shared
// memory in the order that the product needs. No warp waits for another.
//
// Activations for block formats are quantised to 8 bits per block of 32, as in the graph's kernels (quantise.cuh).
#pragma once
#include "persistent/add_normed.cuh"
#include "persistent/partition.cuh"

// A staged slice consists of pieces of 16 bytes, so that neighbouring lanes read neighbouring pieces. Blocks: bytes 0..16 of all
// blocks, bytes 16..32, then the scales and sums. Floats: pieces of 4, first the even ones, then the odd ones.
template <class V> __device__ __forceinline__ void store_float_quad(u8 *slice, u32 quad, const float (&v)[4]) {
    *(float4 *)(slice + (quad % 2 * Partition<V>::EACH + quad / 2) * 16) = make_float4(v[0], v[1], v[2], v[3]);
}

// A quad of a block: its bytes, and what is kept beside the block.
template <class V> __device__ __forceinline__ void store_block_quad(u8 *slice, u32 quad, u32 q, float4 side) {
    constexpr u32 UNITS = Partition<V>::EACH;
    u32 block = quad / 8, e = quad % 8;
    *(u32 *)(slice + (e / 4 * UNITS + block) * 16 + e % 4 * 4) = q;
    if (e == 0) *(float4 *)(slice + (2 * UNITS + block) * 16) = side;
}

template <class V, u32 ROUNDS> __device__ __forceinline__ void store_floats(u8 *slice, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++)
        if (lane + 32 * r < quads) store_float_quad<V>(slice, lane + 32 * r, v[r]);
}

// Quantised quads: four bytes each, and of each block its scale, the sums of both halves and of all.
template <u32 ROUNDS> struct QuantisedQuads {
    u32 q[ROUNDS];
    float4 side[ROUNDS];

    // Eight neighbouring lanes share a block. Each step is done for all rounds before the next step, to overlap their latencies.
    __device__ __forceinline__ explicit QuantisedQuads(const float (&v)[ROUNDS][4]) {
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
            // Adding 1.5 * 2^23 leaves the rounded integer in the last byte.
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
            // NaN is not below TINY: it makes the scale, and so every output of the row, NaN. So does infinity, multiplied by zero.
            float scale = most[r] <= TINY ? 0.0f : most[r] * (1.0f / 127.0f);
            float low = scale * (float)sum[r], high = scale * (float)__shfl_xor_sync(~0u, sum[r], 4);
            side[r] = make_float4(scale, low, high, low + high);
        }
    }
};

template <class V, u32 ROUNDS> __device__ __forceinline__ void store_quantised(u8 *slice, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
    QuantisedQuads<ROUNDS> quantised(v);
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++)
        if (lane + 32 * r < quads) store_block_quad<V>(slice, lane + 32 * r, quantised.q[r], quantised.side[r]);
}

// Stores quads of a piece as two BF16 parts (tensor.cuh): of each two elements the high parts, then the low parts. First the even quads,
// then the odd ones.
template <class V, u32 ROUNDS, u32 LANES> __device__ __forceinline__ void store_split(u8 *piece, u32 at, u32 quads, const float (&v)[ROUNDS][4]) {
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 words[4], quad = at + LANES * r;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float a = v[r][2 * i], b = v[r][2 * i + 1];
            __nv_bfloat162 high = __floats2bfloat162_rn(a, b);
            float2 of = __bfloat1622float2(high);
            __nv_bfloat162 low = __floats2bfloat162_rn(a - of.x, b - of.y);
            words[2 * i] = *(const u32 *)&high, words[2 * i + 1] = *(const u32 *)&low;
        }
        if (quad < quads) *(uint4 *)(piece + (quad % 2 * Pieces<V>::EACH + quad / 2) * 16) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Loads a warp's slice, or its pieces of some chunks: the lanes divide the pieces among themselves.
template <class V> struct SliceLoader {
    using S = Staging<V>;
    static constexpr u32 LANES = 32 / S::PIECES, ROUNDS = (S::QUADS + LANES - 1) / LANES;
    u32 first, quads, at; // of the lane's piece: element of the vector, its quads, and the lane's first quad
    float4 weights[V::norm ? ROUNDS : 1];

    __device__ __forceinline__ void begin(const Instruction &in, u32 chunk, u32 warp, u32 lane) {
        u32 mine = chunk + lane / LANES;
        first = S::first(mine, warp), quads = S::quads(mine, warp), at = lane % LANES;
        if constexpr (V::norm) {
            const float *norm = (const float *)in.vectors[0];
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) {
                weights[r] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
                if (norm && at + LANES * r < quads) weights[r] = __ldg((const float4 *)(norm + first) + at + LANES * r);
            }
        }
    }

    // Multiplies the loaded values by the norm's weights; writes the sum of their squares to `squares`. A norm of groups is complete
    // then: the slice is one of its groups.
    __device__ __forceinline__ void apply_norm(const uint4 (&got)[ROUNDS], u32 lane, float (&v)[ROUNDS][4], float *squares) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            bool live = at + LANES * r < quads;
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
            if constexpr (V::grouped) {
                float factor = rsqrtf(sum * ((float)WARPS / (float)V::k) + V::eps);
#pragma unroll
                for (u32 r = 0; r < ROUNDS; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) v[r][i] *= factor;
            }
        }
    }
};

// Stages this warp's slice of `x` in `slice`, multiplied by the norm's weights; the norm's factor is applied to the results. Writes the
// slice's sum of squares to `squares`.
template <class V> __device__ __forceinline__ void stage(WaitContext &w, const Instruction &in, const float *x, u32 tag, u8 *slice, u32 warp, u32 lane, float *squares) {
    using Loader = SliceLoader<V>;
    constexpr u32 ROUNDS = Loader::ROUNDS;
    Loader loader;
    loader.begin(in, 0, warp, lane);
    uint4 got[ROUNDS];
    if constexpr (V::local) {
        read_hidden<ROUNDS, Loader::LANES>(w.s, loader.first, loader.at, loader.quads, got);
    } else {
        if (warp == 0 && lane == 0) w.s->signals.awaiting = V::attended ? AWAITS_INPUT | AWAITS_ATTENTION : AWAITS_INPUT;
        receive<ROUNDS, Loader::LANES>(w, x + loader.first, tag, loader.at, loader.quads, got);
        if (warp == 0 && lane == 0) w.s->signals.awaiting = 0;
    }
    float v[ROUNDS][4];
    loader.apply_norm(got, lane, v, squares);
    if constexpr (V::Format::BLOCKS) store_quantised<V>(slice, lane, loader.quads, v);
    else if constexpr (V::chunks != 0) store_split<V, ROUNDS, Loader::LANES>(slice + lane / Loader::LANES * Pieces<V>::BYTES, loader.at, loader.quads, v);
    else store_floats<V>(slice, lane, loader.quads, v);
    __syncwarp();
}
