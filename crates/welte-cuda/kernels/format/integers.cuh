// The integers of AWQ, GPTQ and compressed-tensors. Planes: integers of BITS bits per 32 elements, and four bytes per GROUP elements: an
// f32 scale if KIND is 0, else a scale and a zero point in BF16 (1) or F16 (2). 8-bit integers are stored minus 128, so that they
// are signed.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = KIND != 0 || BITS == 4; // whether m may be other than 0
    static constexpr int CENTRE = KIND == 0 && BITS == 4 ? 8 : 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = BITS == 4; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = GROUP, RAW_BYTES = 4 + GROUP * BITS / 8;
    static constexpr int PLANES = BITS == 4 ? 2 : 3;
#if BITS == 4
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, GROUP}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 4}; return of[p]; }
#else
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, GROUP}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 16, 4}; return of[p]; }
#endif

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
#if BITS == 4
        nibbles(p[0] + 16 * b, w.q);
        constexpr float STORED_BELOW = 0.0f;
#else
        uint4 low = *(const uint4*)(p[0] + 16 * b), high = *(const uint4*)(p[1] + 16 * b);
        w.q[0] = low.x, w.q[1] = low.y, w.q[2] = low.z, w.q[3] = low.w;
        w.q[4] = high.x, w.q[5] = high.y, w.q[6] = high.z, w.q[7] = high.w;
        constexpr float STORED_BELOW = 128.0f;
#endif
        u32 both = *(const u32*)(p[PLANES - 1] + 4 * (b / (GROUP / 32)));
#if KIND == 0
        float scale = __uint_as_float(both), zero = BITS == 4 ? 8.0f : 128.0f;
#elif KIND == 1
        float scale = __uint_as_float(both << 16), zero = __uint_as_float(both & 0xffff0000u);
#else
        float2 halves = __half22float2(*(const __half2*)&both);
        float scale = halves.x, zero = halves.y;
#endif
        one_scale(w, scale, scale * (STORED_BELOW - zero));
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + RAW_BYTES * (b / (GROUP / 32));
        const u8* q = block + 4 + 4 * BITS * (b % (GROUP / 32));
#if BITS == 4
        pack_nibbles(p[0] + 16 * b, [&](int e) -> u32 { return (q[e / 2] >> (4 * (e % 2))) & 15; });
#else
        for (int e = 0; e < 16; e++) {
            p[0][16 * b + e] = (u8)(q[e] ^ 128);
            p[1][16 * b + e] = (u8)(q[e + 16] ^ 128);
        }
#endif
        if (b % (GROUP / 32) == 0) copy(p[PLANES - 1] + 4 * (b / (GROUP / 32)), block, 4);
    }
};
