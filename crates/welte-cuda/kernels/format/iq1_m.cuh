// Blocks of 256. Planes: numbers of two bits, 0 to 2; two scales of three bits per 32, and four bits for the groups of
// eight of which 1/8 is subtracted; d.
#include "format/signed.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 56;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 2, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint2 pairs = *(const uint2*)(p[0] + 8 * b);
        u32 s = *(const u16*)(p[1] + 2 * b);
        // Eighths: 8 (number - 1) + 1 or - 1, plus 9.
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = (pair_bits(pairs, j) << 3) + ((s >> (6 + j / 2)) & 1 ? 0u : 0x02020202u);
        float d = 0.125f * half_at(p[2] + 2 * (b / 8));
        w.d[0] = d * (float)(2 * (s & 7) + 1);
        w.d[1] = d * (float)(2 * ((s >> 3) & 7) + 1);
        w.m[0] = -9.0f * w.d[0];
        w.m[1] = -9.0f * w.d[1];
        return w;
    }

#ifdef TABLE
    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 56 * (b / 8);
        u32 sub = b % 8;
        auto high = [&](int g) -> u32 { return (block[32 + 2 * sub + g / 2] >> (4 * (g % 2))) & 15; };
        pack_pairs(p[0] + 8 * b, 0, [&](int e) -> u32 {
            u32 g = e / 8;
            return (table[block[4 * sub + g] | (high(g) & 7) << 8] >> (2 * (e % 8))) & 3;
        });
        u32 scales = (u16_at(block + 48 + 2 * (sub / 2)) >> (6 * (sub % 2))) & 63;
        for (int g = 0; g < 4; g++) scales |= (high(g) >> 3) << (6 + g);
        *(u16*)(p[1] + 2 * b) = (u16)scales;
        if (sub) return;
        u32 d = 0;
        for (int i = 0; i < 4; i++) d |= u16_at(block + 48 + 2 * i) >> 12 << (4 * i);
        *(u16*)(p[2] + 2 * (b / 8)) = (u16)d;
    }
#endif
};
