// Blocks of 32. Planes: nibbles; fifth bits; d and m.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 32, RAW_BYTES = 24;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 4, 4}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        nibbles(p[0] + 16 * b, w.q);
        more_bits(*(const u32*)(p[1] + 4 * b), 4, w.q);
        float2 dm = __half22float2(*(const __half2*)(p[2] + 4 * b));
        one_scale(w, dm.x, dm.y);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        raw += 24 * b;
        copy(p[0] + 16 * b, raw + 8, 16);
        pack_bits(p[1] + 4 * b, 0, [&](int e) -> u32 { return raw[4 + e / 8] >> (e % 8); });
        copy(p[2] + 4 * b, raw, 4);
    }
};
