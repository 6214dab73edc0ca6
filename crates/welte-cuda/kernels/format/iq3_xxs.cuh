// Blocks of 256. Planes: numbers of three bits and signs; an odd scale per 32; d.
#include "format/signed.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 98;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 1, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        nibbles(p[0] + 16 * b, w.q);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            // Multiples of eight from 4 on; the last one is 62.
            u32 m = w.q[j] & 0x07070707u;
            w.q[j] = negate(0x04040404u + (m << 3) + ((m & m >> 1 & m >> 2 & 0x01010101u) << 1), (w.q[j] >> 3) & 0x01010101u);
        }
        one_scale(w, 0.25f * half_at(p[2] + 2 * (b / 8)) * (float)p[1][b], 0.0f);
        return w;
    }

#ifdef TABLE
    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 98 * (b / 8);
        const u8* indices = block + 2 + 8 * (b % 8);
        u32 word = u32_at(block + 66 + 4 * (b % 8));
        pack_iq3(p[0] + 16 * b, [&](int g) -> u32 { return table[indices[g]]; },
                 [&](int g) -> u32 { return even_signs(word >> (7 * g)); });
        p[1][b] = (u8)(2 * (word >> 28) + 1);
        if (b % 8 == 0) copy(p[2] + 2 * (b / 8), block, 2);
    }
#endif
};
