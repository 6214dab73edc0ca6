// Blocks of 256. Planes: nibbles; the two high bits; two signed scales per 32; d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 210;
    static constexpr int PLANES = 4;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 8, 2, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        nibbles(p[0] + 16 * b, w.q);
        uint2 pairs = *(const uint2*)(p[1] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] |= pair_bits(pairs, j) << 4;
        u32 s = *(const u16*)(p[2] + 2 * b);
        float d = half_at(p[3] + 2 * (b / 8));
        w.d[0] = d * (float)(i8)(s & 255);
        w.d[1] = d * (float)(i8)(s >> 8);
        w.m[0] = -32.0f * w.d[0];
        w.m[1] = -32.0f * w.d[1];
        return w;
    }

    // The integer of element e of a block, from the file's layout.
    __device__ static u32 integer(const u8* block, u32 e) {
        u32 half = e / 128, part = e % 128 / 16;
        u32 low = (block[64 * half + 16 * (part % 4) + e % 16] >> (4 * (part / 4))) & 15;
        u32 high = (block[128 + 32 * half + 16 * (part % 2) + e % 16] >> (2 * (part / 2))) & 3;
        return low | (high << 4);
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 210 * (b / 8);
        u32 first = 32 * (b % 8);
        auto q = [&](int e) -> u32 { return integer(block, first + e); };
        pack_nibbles(p[0] + 16 * b, q);
        pack_pairs(p[1] + 8 * b, 4, q);
        copy(p[2] + 2 * b, block + 192 + first / 16, 2);
        if (b % 8 == 0) copy(p[3] + 2 * (b / 8), block + 208, 2);
    }
};
