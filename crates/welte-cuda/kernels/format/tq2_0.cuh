// Blocks of 256. Planes: numbers of two bits, one above the value; d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 1; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 66;
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint2 pairs = *(const uint2*)(p[0] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = pair_bits(pairs, j);
        float d = half_at(p[1] + 2 * (b / 8));
        one_scale(w, d, -d);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 66 * (b / 8);
        const u8* bytes = block + 32 * (b % 8 / 4);
        pack_pairs(p[0] + 8 * b, 0, [&](int e) -> u32 { return (bytes[e] >> (2 * (b % 4))) & 3; });
        if (b % 8 == 0) copy(p[1] + 2 * (b / 8), block + 64, 2);
    }
};
