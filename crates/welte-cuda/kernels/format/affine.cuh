// MLX's quantisation. Planes: integers of BITS bits per 32 elements, and a scale and a bias per GROUP elements. Scales are BF16 if
// BF16 is 1, else F16. 8-bit integers are stored minus 128, so that they are signed.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = true; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = BITS == 4; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = GROUP, RAW_BYTES = 4 + GROUP * BITS / 8;
#if BITS == 2 || BITS == 4
    static constexpr int PLANES = 2;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, GROUP}; return of[p]; }
#else
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, GROUP}; return of[p]; }
#endif
    __host__ __device__ static constexpr int bytes(int p) {
#if BITS == 2
        constexpr int of[] = {8, 4};
#elif BITS == 3
        constexpr int of[] = {8, 4, 4};
#elif BITS == 4
        constexpr int of[] = {16, 4};
#elif BITS == 5
        constexpr int of[] = {16, 4, 4};
#elif BITS == 6
        constexpr int of[] = {16, 8, 4};
#else
        constexpr int of[] = {16, 16, 4};
#endif
        return of[p];
    }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
#if BITS == 8
        uint4 low = *(const uint4*)(p[0] + 16 * b), high = *(const uint4*)(p[1] + 16 * b);
        w.q[0] = low.x, w.q[1] = low.y, w.q[2] = low.z, w.q[3] = low.w;
        w.q[4] = high.x, w.q[5] = high.y, w.q[6] = high.z, w.q[7] = high.w;
#elif BITS >= 4
        nibbles(p[0] + 16 * b, w.q);
#else
        uint2 low = *(const uint2*)(p[0] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] = pair_bits(low, j);
#endif
#if BITS == 3
        more_bits(*(const u32*)(p[1] + 4 * b), 2, w.q);
#elif BITS == 5
        more_bits(*(const u32*)(p[1] + 4 * b), 4, w.q);
#elif BITS == 6
        uint2 high = *(const uint2*)(p[1] + 8 * b);
#pragma unroll
        for (int j = 0; j < 8; j++) w.q[j] |= pair_bits(high, j) << 4;
#endif
        u32 both = *(const u32*)(p[PLANES - 1] + 4 * (b / (GROUP / 32)));
#if BF16
        float scale = __uint_as_float(both << 16), bias = __uint_as_float(both & 0xffff0000u);
#else
        float2 halves = __half22float2(*(const __half2*)&both);
        float scale = halves.x, bias = halves.y;
#endif
        one_scale(w, scale, BITS == 8 ? fmaf(128.0f, scale, bias) : bias);
        return w;
    }

    // The integer of element e of 32, from the bit stream.
    __device__ static u32 integer(const u8* stream, u32 e) {
        u32 byte = e * BITS / 8, shift = e * BITS % 8;
        u32 bits = stream[byte];
        if (shift + BITS > 8) bits |= (u32)stream[byte + 1] << 8;
        return (bits >> shift) & ((1u << BITS) - 1);
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + RAW_BYTES * (b / (GROUP / 32));
        const u8* stream = block + 4 + 4 * BITS * (b % (GROUP / 32));
        auto q = [&](int e) -> u32 { return integer(stream, e); };
#if BITS == 8
        for (int e = 0; e < 16; e++) {
            p[0][16 * b + e] = (u8)(q(e) ^ 128);
            p[1][16 * b + e] = (u8)(q(e + 16) ^ 128);
        }
#elif BITS >= 4
        pack_nibbles(p[0] + 16 * b, q);
#else
        pack_pairs(p[0] + 8 * b, 0, q);
#endif
#if BITS == 3
        pack_bits(p[1] + 4 * b, 2, q);
#elif BITS == 5
        pack_bits(p[1] + 4 * b, 4, q);
#elif BITS == 6
        pack_pairs(p[1] + 8 * b, 4, q);
#endif
        if (b % (GROUP / 32) == 0) copy(p[PLANES - 1] + 4 * (b / (GROUP / 32)), block, 4);
    }
};
