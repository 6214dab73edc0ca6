// Blocks of 32. Planes: indices in a table of small floats (stored as twice their values); an exponent.
#include "format/codebook.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 32, RAW_BYTES = 17;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 1}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        // 0 1 2 3, 4 6 8 12, and their negatives.
        look_up<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu>(p[0] + 16 * b, w.q);
        // 2^(e - 128), exact for every e.
        int e = p[1][b];
        one_scale(w, __int_as_float(max((e - 1) << 23, 0x200000 << min(e, 2))), 0.0f);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        raw += 17 * b;
        pack_places(p[0] + 16 * b, raw + 1);
        p[1][b] = raw[0];
    }
};
