// Blocks of 256. Planes: numbers of two bits; signs; an odd scale per 32; d.
#include "format/signed.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 66;
    static constexpr int PLANES = 4;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 4, 1, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        iq2_block(p[0] + 8 * b, p[1] + 4 * b, w.q);
        one_scale(w, 0.125f * half_at(p[3] + 2 * (b / 8)) * (float)p[2][b], 0.0f);
        return w;
    }

#ifdef TABLE
    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 66 * (b / 8);
        const u8* sub = block + 2 + 8 * (b % 8);
        u32 word = u32_at(sub + 4);
        pack_iq2(p[0] + 8 * b, p[1] + 4 * b, [&](int g) -> u32 { return table[sub[g]]; },
                 [&](int g) -> u32 { return even_signs(word >> (7 * g)); });
        p[2][b] = (u8)(2 * (word >> 28) + 1);
        if (b % 8 == 0) copy(p[3] + 2 * (b / 8), block, 2);
    }
#endif
};
