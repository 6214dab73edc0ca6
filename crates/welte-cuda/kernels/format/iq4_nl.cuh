// Blocks of 32. Planes: table indices; d.
#include "format/codebook.cuh"

struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 32, RAW_BYTES = 18;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        look_up_uneven(p[0] + 16 * b, w.q);
        one_scale(w, half_at(p[1] + 2 * b), 0.0f);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        raw += 18 * b;
        pack_places(p[0] + 16 * b, raw + 2);
        copy(p[1] + 2 * b, raw, 2);
    }
};
