// Plain BF16 values.
#define FLOATS // activations stay floats
#define PLAIN  // rows are stored as in the file

struct Format {
    static constexpr bool BLOCKS = false;
    static constexpr int RAW_BLOCK = 1, RAW_BYTES = 2;
    static constexpr int PLANES = 1;
    __host__ __device__ static constexpr int elements(int) { return 1; }
    __host__ __device__ static constexpr int bytes(int) { return 2; }

    // Loads elements 8i.. of a row.
    __device__ static __forceinline__ void load8(const u8* const p[], u32 i, float v[8]) {
        uint4 w = *(const uint4*)(p[0] + 16 * i);
        u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = __uint_as_float(words[j] << 16);
            v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
    }
};
