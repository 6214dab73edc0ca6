// Blocks of 256. Planes: table indices and a signed scale per 32; d.
#include "format/codebook.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 136;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 1, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        look_up_uneven(p[0] + 16 * b, w.q);
        one_scale(w, half_at(p[2] + 2 * (b / 8)) * (float)(i8)p[1][b], 0.0f);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 136 * (b / 8);
        u32 sub = b % 8;
        pack_places(p[0] + 16 * b, block + 8 + 16 * sub);
        u32 low = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15, high = (block[2 + sub / 4] >> (2 * (sub % 4))) & 3;
        p[1][b] = (u8)((low | (high << 4)) - 32);
        if (sub == 0) copy(p[2] + 2 * (b / 8), block, 2);
    }
};
