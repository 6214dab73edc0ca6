// Shared by Q4_K and Q5_K. 16 bytes per 256 elements hold d, dmin, and for each of the 8 blocks of 32 a byte (the scale and the
// low two bits of the min) and a nibble (the rest of the min).
#pragma once

__device__ __forceinline__ void k_head(const u8* heads, u32 b, Block32& w) {
    const u8* head = heads + 16 * (b / 8);
    u32 i = b % 8;
    float2 dm = __half22float2(*(const __half2*)head);
    u32 byte = head[4 + i], nibble = (head[12 + i / 2] >> (4 * (i & 1))) & 15;
    one_scale(w, dm.x * (float)(byte & 63), -dm.y * (float)((byte >> 6) | (nibble << 2)));
}

// Packs from the file's d, dmin and twelve bytes of 6-bit scales and mins.
__device__ inline void k_head_repack(const u8* file, u8* head) {
    copy(head, file, 4);
    const u8* bytes = file + 4;
    u32 nibbles = 0;
    for (u32 i = 0; i < 8; i++) {
        u32 scale = bytes[i] & 63, min = bytes[4 + i] & 63;
        if (i >= 4) {
            scale = (bytes[4 + i] & 15) | ((bytes[i - 4] >> 6) << 4);
            min = (bytes[4 + i] >> 4) | ((bytes[i] >> 6) << 4);
        }
        head[4 + i] = (u8)(scale | (min << 6));
        nibbles |= (min >> 2) << (4 * i);
    }
    *(u32*)(head + 12) = nibbles;
}
