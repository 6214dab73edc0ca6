// Blocks of 32. Planes: nibbles; d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 8; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = true; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 32, RAW_BYTES = 18;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        nibbles(p[0] + 16 * b, w.q);
        float d = half_at(p[1] + 2 * b);
        one_scale(w, d, -8.0f * d);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        raw += 18 * b;
        copy(p[0] + 16 * b, raw + 2, 16);
        copy(p[1] + 2 * b, raw, 2);
    }
};
