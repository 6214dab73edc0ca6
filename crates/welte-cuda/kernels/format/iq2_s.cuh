// Blocks of 256. Planes: numbers of two bits; signs; two scales of four bits per 32; d.
#include "format/signed.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 82;
    static constexpr int PLANES = 4;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 4, 1, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        iq2_block(p[0] + 8 * b, p[1] + 4 * b, w.q);
        float d = 0.125f * half_at(p[3] + 2 * (b / 8));
        u32 s = p[2][b];
        w.d[0] = d * (float)(2 * (s & 15) + 1);
        w.d[1] = d * (float)(2 * (s >> 4) + 1);
        w.m[0] = w.m[1] = 0.0f;
        return w;
    }

#ifdef TABLE
    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 82 * (b / 8);
        u32 first = 4 * (b % 8), high = block[66 + b % 8];
        pack_iq2(p[0] + 8 * b, p[1] + 4 * b,
                 [&](int g) -> u32 { return table[block[2 + first + g] | ((high >> (2 * g)) & 3) << 8]; },
                 [&](int g) -> u32 { return block[34 + first + g]; });
        p[2][b] = block[74 + b % 8];
        if (b % 8 == 0) copy(p[3] + 2 * (b / 8), block, 2);
    }
#endif
};
