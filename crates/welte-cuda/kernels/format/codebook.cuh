// Shared by the formats with a table of 16 values. A word holds the table indices of elements 4j.. in its low half and of
// elements 16 + 4j.. in its high half, so that four indices select four bytes at once.
#pragma once

// The values of 32 elements, from a table in four words.
template <u32 T0, u32 T1, u32 T2, u32 T3> __device__ __forceinline__ void look_up(const u8* p, u32 q[8]) {
    uint4 w = *(const uint4*)p;
    u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 within = words[j] & 0x77777777u, which = 0x32103210u | ((words[j] & 0x88888888u) >> 1);
        q[j] = select(select(T0, T1, within), select(T2, T3, within), which);
        within >>= 16, which >>= 16;
        q[j + 4] = select(select(T0, T1, within), select(T2, T3, within), which);
    }
}

// Packs from the file's layout, where byte j holds element j in its low half and element j + 16 in its high half.
__device__ inline void pack_places(u8* to, const u8* raw) {
    for (int j = 0; j < 4; j++) {
        u32 word = 0;
        for (int i = 0; i < 4; i++) {
            u32 byte = raw[4 * j + i];
            word |= (byte & 15) << (4 * i) | (byte >> 4) << (16 + 4 * i);
        }
        ((u32*)to)[j] = word;
    }
}

// The table of IQ4_NL and IQ4_XS: -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113.
__device__ __forceinline__ void look_up_uneven(const u8* p, u32 q[8]) {
    look_up<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u>(p, q);
}
