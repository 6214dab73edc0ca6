// Blocks of 128. Planes: bits; d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 1; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 128, RAW_BYTES = 18;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 128}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {4, 2}; return of[p]; }

    // Integers are 0 and 2, one above -1 and 1.
    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = 0;
        more_bits(*(const u32*)(p[0] + 4 * b), 1, w.q);
        float d = half_at(p[1] + 2 * (b / 4));
        one_scale(w, d, -d);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 18 * (b / 4);
        const u8* bits = block + 2 + 4 * (b % 4);
        pack_bits(p[0] + 4 * b, 0, [&](int e) -> u32 { return bits[e / 8] >> (e % 8); });
        if (b % 4 == 0) copy(p[1] + 2 * (b / 4), block, 2);
    }
};
