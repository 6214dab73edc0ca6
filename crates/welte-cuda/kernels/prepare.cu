// Converts rows of f32 to 16-bit floats for the tensor cores, or to 8-bit ones and a scale, with an optional norm.
// Macros: BFLOAT (0: f16, 1: bf16), LAYOUT (0: plain rows; 1: the layout of tile.cuh; 2: the order of columns.cu; 3: the same
// order in the layout of tile.cuh; 4: FP8 in the layout of tile.cuh, in the order of the planes of f8_e4m3.cuh).
#include "common.cuh"
#include "tile.cuh"

struct PrepareArgs {
    const float* x;
    const float* weight; // of the norm; null stands for ones
    void* out;
    const Step* step;
    u32 k;
    u32 x_stride;
    u32 out_rows;   // rows of `out`; those beyond the live ones become zeros
    u32 out_stride; // plain rows: elements from one row to the next, a multiple of 8
    u32 normed;
    float eps;
    float scale; // of f16 without a norm: keeps large activations within its range
    u32 each;    // output rows per row of x, of k consecutive values each
    float* scales; // of FP8 rows
};

constexpr bool FLOAT8 = LAYOUT == 4;
constexpr float LARGEST = 448.0f; // of FP8

__device__ __forceinline__ u32 two(float a, float b) {
#if BFLOAT
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
#else
    // Values beyond the largest f16 stay finite.
    a = fminf(fmaxf(a, -65504.0f), 65504.0f);
    b = fminf(fmaxf(b, -65504.0f), 65504.0f);
    half2 v = __floats2half2_rn(a, b);
#endif
    return *(u32*)&v;
}

// Loads eight values of a row from element `at` on; zeros past its end.
__device__ __forceinline__ void eight(const float* row, u32 at, u32 k, bool aligned, float v[8]) {
    if (aligned && at + 8 <= k) {
        const float4 a = *(const float4*)(row + at), b = *(const float4*)(row + at + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) v[i] = at + i < k ? row[at + i] : 0.0f;
    }
}

// One block per row. Threads take eight consecutive values at a time. The order of the sum depends only on k.
extern "C" __global__ void __launch_bounds__(256) prepare(const __grid_constant__ PrepareArgs a) {
    __shared__ float sums[8], largest[8];
    const u32 row = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.x;
    grid_release();
    grid_wait();
    if (row >= a.out_rows) return;
    const bool live = row < a.step->live * a.each;
    const float* x = a.x + (u64)(row / a.each) * a.x_stride + (u64)(row % a.each) * a.k;
    const bool aligned = ((u64)x & 15) == 0;
    const bool aligned_weight = ((u64)a.weight & 15) == 0;
    const u32 padded = LAYOUT == 4 ? (a.k + 255) / 256 * 256 : LAYOUT >= 2 ? (a.k + 127) / 128 * 128 : LAYOUT == 1 ? (a.k + 63) / 64 * 64 : a.out_stride;
    float scale = a.scale;
    if ((a.normed || FLOAT8) && live) {
        float sum = 0, most = 0;
        for (u32 at = thread * 8; at < a.k; at += 2048) {
            float v[8], w[8];
            eight(x, at, a.k, aligned, v);
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum = fmaf(v[i], v[i], sum);
            if (!FLOAT8) continue;
            if (a.weight) eight(a.weight, at, a.k, aligned_weight, w);
#pragma unroll
            for (u32 i = 0; i < 8; i++) most = max_nan(most, fabsf(a.weight ? v[i] * w[i] : v[i]));
        }
        sum = warp_sum(sum);
        if (FLOAT8) {
#pragma unroll
            for (u32 o = 1; o < 32; o <<= 1) most = max_nan(most, __shfl_xor_sync(~0u, most, o));
        }
        if (thread % 32 == 0) sums[thread / 32] = sum, largest[thread / 32] = most;
        __syncthreads();
        sum = most = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum += sums[i], most = max_nan(most, largest[i]);
        if (a.normed) scale = rsqrtf(sum / (float)a.k + a.eps);
        if (FLOAT8) {
            // A row of zeros stays zeros. NaN and infinity make the scale NaN or infinite, and with it all results.
            const float factor = a.normed ? scale : 1.0f;
            scale = most <= TINY ? 0.0f : LARGEST / most;
            if (thread == 0) a.scales[row] = most <= TINY ? 0.0f : factor * (most / LARGEST);
        }
    }
    for (u32 at = thread * 8; at < padded; at += 2048) {
        float v[8] = {}, w[8];
        if (live) {
            eight(x, at, a.k, aligned, v);
            if (a.weight) eight(a.weight, at, a.k, aligned_weight, w);
#pragma unroll
            for (u32 i = 0; i < 8; i++) v[i] *= a.weight ? scale * w[i] : scale;
        }
#if LAYOUT == 4 && __CUDA_ARCH__ >= 890
        // [k / 256][two planes: the first and the second half of each 32 elements][row][128 elements]
        u8* to = (u8*)a.out + (u64)(at / 256 * 2 + at % 32 / 16) * a.out_rows * 128 + tile_at(row, at % 256 / 32) + at % 16;
        *(uint2*)to = make_uint2(narrow_e4m3(v[0], v[1]) | narrow_e4m3(v[2], v[3]) << 16, narrow_e4m3(v[4], v[5]) | narrow_e4m3(v[6], v[7]) << 16);
#else
        const uint4 out = make_uint4(two(v[0], v[1]), two(v[2], v[3]), two(v[4], v[5]), two(v[6], v[7]));
#endif
#if LAYOUT == 2
        // [k / 128][piece of eight in 32 elements][row][32 elements in 128]
        u8* to = (u8*)a.out + (((u64)(at / 128) * 4 + at % 32 / 8) * a.out_rows + row) * 64 + at % 128 / 32 * 16;
#elif LAYOUT == 3
        // [k / 128][two panels of 64][row][64 elements]: sixteen elements of a product are two from each 32, then two more from each.
        u8* to = (u8*)a.out + (u64)(at / 128) * a.out_rows * 256 + at % 128 / 32 * 4;
#elif LAYOUT == 1
        u8* to = (u8*)a.out + (u64)(at / 64) * a.out_rows * 128 + tile_at(row, at % 64 / 8);
#elif LAYOUT == 0
        u8* to = (u8*)a.out + ((u64)row * a.out_stride + at) * 2;
#endif
#if LAYOUT == 3
        const u32 words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // The product of this chunk, and which eight of its sixteen elements.
            const u32 product = at % 32 / 8 * 2 + i / 2, half = i % 2;
            *(u32*)(to + (u64)(product / 4) * a.out_rows * 128 + tile_at(row, product % 4 * 2 + half)) = words[i];
        }
#elif LAYOUT != 4
        *(uint4*)to = out;
#endif
    }
}
