// Blocks of 256. Planes: two bits per element; two bytes (scale, min << 4) per 32; d and dmin.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 84;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 2, 4}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint2 pairs = *(const uint2*)(p[0] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = pair_bits(pairs, j);
        u32 s = *(const u16*)(p[1] + 2 * b);
        float2 dm = __half22float2(*(const __half2*)(p[2] + 4 * (b / 8)));
        w.d[0] = dm.x * (float)(s & 15);
        w.d[1] = dm.x * (float)((s >> 8) & 15);
        w.m[0] = -dm.y * (float)((s >> 4) & 15);
        w.m[1] = -dm.y * (float)(s >> 12);
        return w;
    }

    // The integer of element e of a block, from the file's layout.
    __device__ static u32 integer(const u8* block, u32 e) {
        u32 sub = e / 16;
        return (block[16 + 32 * (sub / 8) + 16 * (sub % 2) + e % 16] >> (2 * (sub / 2 % 4))) & 3;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 84 * (b / 8);
        u32 first = 32 * (b % 8);
        pack_pairs(p[0] + 8 * b, 0, [&](int e) -> u32 { return integer(block, first + e); });
        copy(p[1] + 2 * b, block + first / 16, 2);
        if (b % 8 == 0) copy(p[2] + 4 * (b / 8), block + 80, 4);
    }
};
