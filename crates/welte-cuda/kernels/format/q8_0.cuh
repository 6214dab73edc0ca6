// Blocks of 32. Planes: bytes 0..16; bytes 16..32 (separate, so that neighbouring lanes read neighbouring words); d.
struct Format {
    static constexpr bool BLOCKS = true;
    static constexpr bool HALVES = false; // whether there is a scale per 16 instead of per 32
    static constexpr bool OFFSET = false; // whether m may be other than 0
    static constexpr int CENTRE = 0; // if not 0, m = -CENTRE * d
    static constexpr bool NIBBLES = false; // whether an integer is just a nibble of plane 0 (`nibbles`)
    static constexpr int RAW_BLOCK = 32, RAW_BYTES = 34;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 32}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 16, 2}; return of[p]; }

    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint4 low = *(const uint4*)(p[0] + 16 * b), high = *(const uint4*)(p[1] + 16 * b);
        w.q[0] = low.x, w.q[1] = low.y, w.q[2] = low.z, w.q[3] = low.w;
        w.q[4] = high.x, w.q[5] = high.y, w.q[6] = high.z, w.q[7] = high.w;
        one_scale(w, half_at(p[2] + 2 * b), 0.0f);
        return w;
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        raw += 34 * b;
        copy(p[0] + 16 * b, raw + 2, 16);
        copy(p[1] + 16 * b, raw + 18, 16);
        copy(p[2] + 2 * b, raw, 2);
    }
};
