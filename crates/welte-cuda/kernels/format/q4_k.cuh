// Blocks of 256. Planes: nibbles as 8 blocks of 32; a head of scales and mins.
#include "format/k_head.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = true; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 144;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 16}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        nibbles(p[0] + 16 * b, w.q);
        k_head(p[1], b, w);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 144 * (b / 8);
        u32 sub = b % 8;
        const u8* low = block + 16 + 32 * (sub / 2);
        pack_nibbles(p[0] + 16 * b, [&](int e) -> u32 { return low[e] >> (4 * (sub % 2)); });
        if (sub == 0) k_head_repack(block, p[1] + 16 * (b / 8));
    }
};
