// Shared by both kinds of NVFP4.
#pragma once
#include "format/codebook.cuh"

// A positive E4M3 float. The same bits in an f16 mean 1/256 of it.
__device__ __forceinline__ float small_float(u32 byte) {
    u16 bits = (u16)(byte << 7);
    return 256.0f * half_at((const u8*)&bits);
}

// Packs half a block of 64: four scales, then eight bytes per 16 elements.
__device__ inline void pack_nvfp4(u8* indices, u8* scales, const u8* block, u32 half) {
    for (int i = 0; i < 2; i++) {
        u32 scale = block[2 * half + i] & 127;
        scales[i] = scale == 127 ? 0 : scale; // 127 has no value; files use it for zero
    }
    const u8* bytes = block + 4 + 16 * half;
    for (int j = 0; j < 4; j++) {
        u32 word = 0;
        for (int e = 0; e < 8; e++) {
            u32 within = 4 * j + e % 4;
            word |= ((bytes[e / 4 * 8 + within % 8] >> (within / 8 * 4)) & 15) << (4 * e);
        }
        ((u32*)indices)[j] = word;
    }
}
