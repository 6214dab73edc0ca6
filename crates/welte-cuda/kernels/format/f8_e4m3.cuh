// Blocks of 128. Planes: bytes 0..16 and bytes 16..32 of every 32 (as in Q8_0), and the f32 scale. Activations stay floats.
#define FLOATS // activations stay floats

struct Format {
    static constexpr bool BLOCKS = false;
    static constexpr int RAW_BLOCK = 128, RAW_BYTES = 132;
    static constexpr int PLANES = 3;
    __host__ __device__ static constexpr int elements(int p) { constexpr int of[] = {32, 32, 128}; return of[p]; }
    __host__ __device__ static constexpr int bytes(int p) { constexpr int of[] = {16, 16, 4}; return of[p]; }

    // The lower two bytes of a word as f16, times 2^-8. The sign stays the highest bit; the exponent gets two more bits.
    __device__ static __forceinline__ half2 small(u32 two) {
        u32 apart = __byte_perm(two, 0, 0x1404);
        u32 bits = (apart & 0x80008000u) | ((apart & 0x7f007f00u) >> 1);
        return *(half2*)&bits;
    }

    __device__ static __forceinline__ float2 pair(u32 two) {
#if __CUDA_ARCH__ >= 890
        u32 bits = widen_e4m3((u16)two);
        return __half22float2(*(half2*)&bits);
#else
        float2 v = __half22float2(small(two));
        return make_float2(256.0f * v.x, 256.0f * v.y);
#endif
    }

    // Loads elements 8i.. of a row.
    __device__ static __forceinline__ void load8(const u8* const p[], u32 i, float v[8]) {
        uint2 w = *(const uint2*)((i & 2 ? p[1] : p[0]) + 16 * (i / 4) + 8 * (i & 1));
        float scale = *(const float*)(p[2] + 4 * (i / 16));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 f = pair((j < 2 ? w.x : w.y) >> (16 * (j & 1)));
            v[2 * j] = scale * f.x, v[2 * j + 1] = scale * f.y;
        }
    }

    // Block b of 32 with unconverted bytes. The scale matches the result of `widen4`.
    __device__ static __forceinline__ Block32 load(const u8* const p[], u32 b) {
        Block32 w;
        uint4 low = *(const uint4*)(p[0] + 16 * b), high = *(const uint4*)(p[1] + 16 * b);
        w.q[0] = low.x, w.q[1] = low.y, w.q[2] = low.z, w.q[3] = low.w;
        w.q[4] = high.x, w.q[5] = high.y, w.q[6] = high.z, w.q[7] = high.w;
        one_scale(w, 256.0f * *(const float*)(p[2] + 4 * (b / 4)), 0.0f);
        return w;
    }

    __device__ static __forceinline__ uint2 widen4(u32 q, half2 d) {
        half2 a = __hmul2(small(q), d), b = __hmul2(small(q >> 16), d);
        return make_uint2(*(u32*)&a, *(u32*)&b);
    }

    __device__ static void repack(const u8* raw, u32 b, u8* const p[]) {
        const u8* block = raw + 132 * (b / 4);
        u32 first = 4 + 32 * (b % 4);
        copy(p[0] + 16 * b, block + first, 16);
        copy(p[1] + 16 * b, block + first + 16, 16);
        if (b % 4 == 0) copy(p[2] + 4 * (b / 4), block, 4);
    }
};
