// Blocks of 64. Planes: indices in a table of small floats (stored as twice their values); two scales per 32.
#include "format/small_float.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 64, RAW_BYTES = 36;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        // 0 1 2 3, 4 6 8 12, and their negatives.
        look_up<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu>(p[0] + 16 * b, w.q);
        u32 s = *(const u16*)(p[1] + 2 * b);
        w.d[0] = 0.5f * small_float(s & 255);
        w.d[1] = 0.5f * small_float(s >> 8);
        w.m[0] = w.m[1] = 0.0f;
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 36 * (b / 2);
        pack_nvfp4(p[0] + 16 * b, p[1] + 2 * b, block, b % 2);
    }
};
