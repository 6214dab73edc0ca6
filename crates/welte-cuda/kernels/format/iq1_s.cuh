// Blocks of 256. Planes: numbers of two bits, 0 to 2; an odd scale per 32, and bit 7 if 1/8 is subtracted; d.
#include "format/signed.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 50;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 1, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint2 pairs = *(const uint2*)(p[0] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = pair_bits(pairs, j);
        u32 s = p[1][b];
        float d = half_at(p[2] + 2 * (b / 8)) * (float)(s & 15);
        one_scale(w, d, (s & 128 ? -1.125f : -0.875f) * d);
        return w;
    }

#ifdef TABLE
    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 50 * (b / 8);
        u32 sub = b % 8, high = u16_at(block + 34 + 2 * sub);
        pack_pairs(p[0] + 8 * b, 0, [&](int e) -> u32 {
            u32 g = e / 8;
            return (table[block[2 + 4 * sub + g] | ((high >> (3 * g)) & 7) << 8] >> (2 * (e % 8))) & 3;
        });
        p[1][b] = (u8)((2 * ((high >> 12) & 7) + 1) | (high >> 15) << 7);
        if (b % 8 == 0) copy(p[2] + 2 * (b / 8), block, 2);
    }
#endif
};
