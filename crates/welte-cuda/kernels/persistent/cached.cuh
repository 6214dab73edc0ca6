// Eight neighbouring values of a cached key or value, as attention holds them in registers: f16, or for a Q8_0 cache the words that contain
// them. These are widened only when they are used, to keep more loads in flight.
#pragma once
#include "attention.cuh"

#if KV_Q8
// Chunk `lane` + `more` of a row. The row is in the cache (FROM_CACHE: other blocks wrote it, so the load bypasses L1), or in shared memory.
template <bool FROM_CACHE> __device__ __forceinline__ uint4 load_cached(const u8 *row, u32 lane, u32 more) {
    u32 chunk = lane + more;
    const u8 *block = row + chunk / 4 * 34, *q = block + 2 + chunk % 4 * 8;
    // Blocks of 34 bytes begin at even addresses: aligned words are read and shifted into place.
    u32 half = (u32)(u64)q & 2;
    const u32 *words = (const u32 *)(q - half);
    // The last half word may be the next block's.
    const u16 *last = (const u16 *)(words + 2), *scale = (const u16 *)block;
    uint4 v;
    if (FROM_CACHE) v = make_uint4(__ldcg(words), __ldcg(words + 1), half ? __ldcg(last) : 0, half << 16 | __ldcg(scale));
    else v = make_uint4(words[0], words[1], half ? *last : 0, half << 16 | *scale);
    return v;
}

// The eight values as f16.
__device__ __forceinline__ uint4 widened(uint4 v) {
    u32 how = v.w >> 16 ? 0x5432 : 0x3210;
    return widen8(__byte_perm(v.x, v.y, how), __byte_perm(v.y, v.z, how), __ushort_as_half((u16)v.w));
}

// Rounds a row of HD floats and writes it to one place or two. The whole warp calls it. The rounding is that of rope.cu.
template <u32 HD> __device__ __forceinline__ void store_rounded(const float *v, u8 *to, u8 *also, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < HD / 32; i++) {
        float x = v[i * 32 + lane], largest = warp_max(fabsf(x)), scale = __fdiv_rn(largest, 127.0f), inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
        i8 q = (i8)(int)fminf(fmaxf(roundf(x * inverse), -128.0f), 127.0f);
        __half half = __float2half_rn(scale);
        to[i * 34 + 2 + lane] = (u8)q;
        if (lane == 0) *(__half *)(to + i * 34) = half;
        if (!also) continue;
        also[i * 34 + 2 + lane] = (u8)q;
        if (lane == 0) *(__half *)(also + i * 34) = half;
    }
}
#else
template <bool FROM_CACHE> __device__ __forceinline__ uint4 load_cached(const u8 *row, u32 lane, u32 more) {
    const uint4 *first = (const uint4 *)row + lane;
    return FROM_CACHE ? __ldcg(first + more) : first[more];
}
__device__ __forceinline__ uint4 widened(uint4 v) { return v; }
#endif
