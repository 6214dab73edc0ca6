// Plain F32 values.
#define FLOATS // activations stay floats
#define PLAIN  // rows are stored as in the file

struct Format {
    static constexpr bool BLOCKS = false;
    static constexpr int RAW_BLOCK = 1, RAW_BYTES = 4;
    static constexpr int PLANES = 1;
    __host__ __device__ static constexpr int elements(int) { return 1; }
    __host__ __device__ static constexpr int bytes(int) { return 4; }

    // Loads elements 8i.. of a row.
    __device__ static __forceinline__ void load8(const u8* const p[], u32 i, float v[8]) {
        float4 a = *(const float4*)(p[0] + 32 * i), b = *(const float4*)(p[0] + 32 * i + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
};
