// Loads activations into a block's shared memory. They are normalised if NORM is set, then rounded to int8 per 32 for block
// formats or kept as f32. A lane reads its part of a row in pieces of 16 bytes. Pieces of neighbouring lanes are adjacent,
// so there are no bank conflicts.
#pragma once
#include "weights.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int LANES = 16;                       // lanes that share a row
constexpr int TAKEN = Format::BLOCKS ? 32 : 8;  // consecutive elements of a row per lane
constexpr int STRIPE = LANES * TAKEN;           // consecutive elements for all lanes of a row: 512 bytes of x
// Stripes that a warp processes at once: about 512 bytes of a row.
#ifdef PLAIN
constexpr int STRIPES = 2;
#else
constexpr int STRIPES = Format::BLOCKS ? 1 : 4;
#endif
constexpr int CHUNK = STRIPES * STRIPE;

// Bytes stored with every 32 rounded activations: their scale and the sum of their values. The sum is kept for each half
// where the format needs it, and multiplied by -CENTRE where the format has a centre.
#ifdef FLOATS
constexpr int X_SIDE = 0;
#else
constexpr int X_SIDE = Format::HALVES ? 16 : 8;
#endif

// Bytes of one row of activations in shared memory. `padded` is k rounded up to whole chunks.
__host__ __device__ constexpr u32 x_bytes(u32 padded) {
    return Format::BLOCKS ? padded + padded / 32 * X_SIDE : padded * 4;
}

// Loads four elements from element i on; those beyond k are zero. Bypasses L1, because another kernel wrote them.
__device__ __forceinline__ float4 load4(const float* x, u32 i, u32 k, bool wide) {
    if (wide && i + 4 <= k) return __ldcg((const float4*)(x + i));
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i < k) v.x = __ldcg(x + i);
    if (i + 1 < k) v.y = __ldcg(x + i + 1);
    if (i + 2 < k) v.z = __ldcg(x + i + 2);
    if (i + 3 < k) v.w = __ldcg(x + i + 3);
    return v;
}

__device__ __forceinline__ bool is_wide(const float* x) { return ((u64)x & 15) == 0; }

__device__ __forceinline__ float squares(float4 v) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

// Stores elements 4i.. of a row. All lanes of a warp call it with consecutive i.
__device__ __forceinline__ void put4(u8* to, u32 padded, u32 i, float4 v) {
#ifdef FLOATS
    u32 stripe = i / (STRIPE / 4), lane = i % (STRIPE / 4) / 2, half = i & 1;
    *(float4*)(to + stripe * 512 + half * (LANES * 16) + lane * 16) = v;
#else
    float most = max_nan(max_nan(fabsf(v.x), fabsf(v.y)), max_nan(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) most = max_nan(most, __shfl_xor_sync(~0u, most, o));
    // NaN is not below TINY, so it makes the scale NaN, and with it every output of the row. Infinity does too: it is
    // multiplied by zero.
    float scale = most <= TINY ? 0.0f : most / 127.0f, inverse = most <= TINY ? 0.0f : 127.0f / most;
    u32 q = (__float2int_rn(v.x * inverse) & 255) | (__float2int_rn(v.y * inverse) & 255) << 8 |
            (__float2int_rn(v.z * inverse) & 255) << 16 | (u32)__float2int_rn(v.w * inverse) << 24;
    int sum = __dp4a((int)q, 0x01010101, 0);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    int other = __shfl_xor_sync(~0u, sum, 4);
    u32 block = i / 8, e = i % 8;
    *(u32*)(to + block / LANES * 512 + e / 4 * (LANES * 16) + block % LANES * 16 + e % 4 * 4) = q;
    if (e == 0) {
        if (Format::HALVES) {
            *(float4*)(to + padded + 16 * block) = make_float4(scale, scale * (float)sum, scale * (float)other, 0.0f);
        } else {
            *(float2*)(to + padded + 8 * block) = make_float2(scale, (Format::CENTRE ? -Format::CENTRE * scale : scale) * (float)(sum + other));
        }
    }
#endif
}

// Loads `rows` rows of x to `to`, x_bytes(padded) apart. With NORM they are multiplied by the norm's weights `w`, and `sums`
// receives parts of the sum of squares. The products are multiplied by norm_factor() afterwards: this saves a barrier here,
// and the rounding does not depend on it. Every block of the kernel loads all of x, because reading it from L2 costs less than
// another kernel. Each thread takes ROUNDS times 4 elements. The order of every sum depends on neither the number of rows
// nor the grid.
__device__ __forceinline__ void prepare(u8* to, float* sums, const float* x, u32 x_stride, u32 rows, const float4* w,
                                        u32 k, u32 padded) {
    u32 tid = threadIdx.x;
    for (u32 c = 0; c < rows; c++) {
        const float* row = x + (size_t)c * x_stride;
        bool wide = is_wide(row);
        float4 kept[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) kept[r] = load4(row, 4 * (tid + r * THREADS), k, wide);
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            u32 i = tid + r * THREADS;
            if (4 * i >= padded) break;
            float4 v = kept[r];
            if (NORM) {
                sum += squares(v);
                v = make_float4(v.x * w[r].x, v.y * w[r].y, v.z * w[r].z, v.w * w[r].w);
            }
            put4(to + c * x_bytes(padded), padded, i, v);
        }
        if (NORM) {
            sum = warp_sum(sum);
            if (tid % 32 == 0) sums[c * WARPS + tid / 32] = sum;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ float norm_factor(const float* sums, u32 c, float eps, u32 k) {
    if (!NORM) return 1.0f;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += sums[c * WARPS + i];
    return 1.0f / sqrtf(sum / (float)k + eps);
}
