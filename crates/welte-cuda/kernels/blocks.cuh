// Shared by the weight formats: a decoded block of 32 elements, and bit manipulation.
#pragma once
#include "common.cuh"

constexpr int MOST_PLANES = 4;

// 32 elements: byte i of word j is the integer of element 4j + i (below 128 or signed), value = d * integer + m.
struct Block32 {
    u32 q[8];
    float d[2]; // for elements 0..16 and 16..32
    float m[2];
};

__device__ __forceinline__ float half_at(const u8* p) { return __half2float(*(const __half*)p); }

__device__ __forceinline__ void one_scale(Block32& b, float d, float m) {
    b.d[0] = b.d[1] = d;
    b.m[0] = b.m[1] = m;
}

// 16 bytes of nibbles: byte j holds element j in its low half and element j + 16 in its high half.
__device__ __forceinline__ void nibbles(const u8* p, u32 q[8]) {
    uint4 w = *(const uint4*)p;
    u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        q[j] = words[j] & 0x0f0f0f0fu;
        q[j + 4] = (words[j] >> 4) & 0x0f0f0f0fu;
    }
}

// Adds one bit per element at bit position `to`. Bit 8i + j of the word belongs to element 4j + i.
__device__ __forceinline__ void more_bits(u32 bits, int to, u32 q[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        u32 moved = j > to ? bits >> (j - to) : bits << (to - j);
        q[j] |= moved & (0x01010101u << to);
    }
}

// Two bits per element. Bits 2j.. of byte i of word h belong to element 16h + 4j + i.
__device__ __forceinline__ u32 pair_bits(const uint2& w, int j) {
    return ((j < 4 ? w.x : w.y) >> (2 * (j & 3))) & 0x03030303u;
}

// Packing at load. `q(e)` is the integer of element e.
template <class Q> __device__ void pack_nibbles(u8* to, Q q) {
    for (int j = 0; j < 16; j++) to[j] = (q(j) & 15) | ((q(j + 16) & 15) << 4);
}
template <class Q> __device__ void pack_bits(u8* to, int bit, Q q) {
    u32 word = 0;
    for (int e = 0; e < 32; e++) word |= ((q(e) >> bit) & 1) << (8 * (e & 3) + e / 4);
    *(u32*)to = word;
}
template <class Q> __device__ void pack_pairs(u8* to, int bit, Q q) {
    u32 words[2] = {0, 0};
    for (int e = 0; e < 32; e++) words[e / 16] |= ((q(e) >> bit) & 3) << (8 * (e & 3) + 2 * (e / 4 % 4));
    *(uint2*)to = make_uint2(words[0], words[1]);
}
__device__ __forceinline__ void copy(u8* to, const u8* from, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = from[i];
}

__host__ __device__ constexpr u32 round_up(u32 v, u32 to) { return (v + to - 1) / to * to; }
