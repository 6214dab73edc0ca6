// Shared by the formats with tables of entries: numbers of magnitudes with signs. Planes hold numbers and signs, not indices of
// entries, so that products need no table.
#pragma once

// The numbers in the bytes of `v`, negated where the byte of `s` is 1. No byte of `v` is zero.
__device__ __forceinline__ u32 negate(u32 v, u32 s) { return (v ^ s * 255) + s; }

// IQ2: 8, 25 and 43 for 0, 1 and 2.
__device__ __forceinline__ u32 iq2_values(u32 m, u32 s) {
    return negate(0x08080808u + m * 17 + ((m >> 1) & 0x01010101u), s);
}

// The 32 values of a block of IQ2.
__device__ __forceinline__ void iq2_block(const u8* numbers, const u8* signs, u32 q[8]) {
    uint2 pairs = *(const uint2*)numbers;
    u32 bits = *(const u32*)signs;
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = iq2_values(pair_bits(pairs, j), (bits >> j) & 0x01010101u);
}

// Eight signs from seven bits: the number of negative elements is even.
__device__ inline u32 even_signs(u32 seven) {
    seven &= 127;
    return seven | (__popc(seven) & 1) << 7;
}

__device__ inline u32 u16_at(const u8* p) { return p[0] | p[1] << 8; }
__device__ inline u32 u32_at(const u8* p) { return u16_at(p) | u16_at(p + 2) << 16; }

// Packs numbers and signs. `entry(g)` is the table's entry for elements 8g.., `signs(g)` their signs.
template <class E, class S> __device__ void pack_iq2(u8* numbers, u8* to, E entry, S signs) {
    pack_pairs(numbers, 0, [&](int e) -> u32 { return (entry(e / 8) >> (2 * (e % 8))) & 3; });
    pack_bits(to, 0, [&](int e) -> u32 { return (signs(e / 8) >> (e % 8)) & 1; });
}

// Packs IQ3: the number in the lower bits, the sign in bit 3. `entry(g)` is the table's entry for elements 4g...
template <class E, class S> __device__ void pack_iq3(u8* to, E entry, S signs) {
    pack_nibbles(to, [&](int e) -> u32 { return ((entry(e / 4) >> (3 * (e % 4))) & 7) | ((signs(e / 8) >> (e % 8)) & 1) << 3; });
}
