// Blocks of 256. Planes: the two low bits; the third bits; two signed scales per 32; d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = true; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 256, RAW_BYTES = 110;
    static constexpr int PLANES = 4;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32, 256}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {8, 4, 2, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint2 pairs = *(const uint2*)(p[0] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = pair_bits(pairs, j);
        more_bits(*(const u32*)(p[1] + 4 * b), 2, w.q);
        u32 s = *(const u16*)(p[2] + 2 * b);
        float d = half_at(p[3] + 2 * (b / 8));
        w.d[0] = d * (float)(i8)(s & 255);
        w.d[1] = d * (float)(i8)(s >> 8);
        w.m[0] = -4.0f * w.d[0];
        w.m[1] = -4.0f * w.d[1];
        return w;
    }

    // The integer of element e of a block, from the file's layout.
    __device__ static u32 integer(const u8* block, u32 e) {
        u32 sub = e / 16;
        u32 low = (block[32 + 32 * (sub / 8) + 16 * (sub % 2) + e % 16] >> (2 * (sub / 2 % 4))) & 3;
        u32 high = (block[16 * (sub % 2) + e % 16] >> (sub / 2)) & 1;
        return low | (high << 2);
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 110 * (b / 8);
        u32 first = 32 * (b % 8);
        auto q = [&](int e) -> u32 { return integer(block, first + e); };
        pack_pairs(p[0] + 8 * b, 0, q);
        pack_bits(p[1] + 4 * b, 2, q);
        const u8* scales = block + 96;
        for (u32 h = 0; h < 2; h++) {
            u32 sub = first / 16 + h;
            u32 low = (scales[sub % 8] >> (4 * (sub / 8))) & 15, high = (scales[8 + sub % 4] >> (2 * (sub / 4))) & 3;
            p[2][2 * b + h] = (u8)((low | (high << 4)) - 32);
        }
        if (b % 8 == 0) copy(p[3] + 2 * (b / 8), block + 108, 2);
    }
};
