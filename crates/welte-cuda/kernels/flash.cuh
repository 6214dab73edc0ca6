// Shared by the kernels of flash attention: the layout of shared memory, and the running softmax.
// Macro: HEAD_DIM (a multiple of 8).
#pragma once
#include "softmax.cuh"

#ifndef STEP
#define STEP 64                                 // positions whose scores are computed together
#endif
constexpr u32 WIDE = (HEAD_DIM + 63) / 64 * 64; // in shared memory
constexpr u32 CHUNKS = HEAD_DIM / 8;            // of 16 bytes of f16
constexpr u32 STEPS_K = (HEAD_DIM + 15) / 16;   // steps of the product with the keys
constexpr u32 TILES_V = STEPS_K * 2;            // of 8 dimensions each

// Queries, keys and values consist of panels of 64 dimensions: [panel][row][8 chunks of 16 bytes, swizzled by the row].
template <u32 R> __device__ __forceinline__ u32 at_chunk(u32 row, u32 chunk) {
    return ((chunk / 8 * R + row) * 8 + (chunk % 8 ^ (row & 7))) * 16;
}

// The sums of a warp's 16 rows. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8.
struct Tile {
    float o[TILES_V][4];
    float largest[2], total[2];
    int low[2], high[2]; // positions that the rows attend to

    // Turns the scores of STEP positions from `at` on into weights p, and rescales the sums.
    __device__ __forceinline__ void take(float (&s)[STEP / 8][4], int at, u32 t, u32 (&p)[STEP / 16][4]) {
        bool edge = at < max(low[0], low[1]) || at + STEP - 1 > min(high[0], high[1]);
        if (__any_sync(~0u, edge))
#pragma unroll
            for (u32 n = 0; n < STEP / 8; ++n)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    int position = at + n * 8 + t * 2 + i % 2;
                    if (position < low[i / 2] || position > high[i / 2]) s[n][i] = NEVER;
                }
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float m = largest[r];
#pragma unroll
            for (u32 n = 0; n < STEP / 8; ++n) m = fmaxf(m, fmaxf(s[n][r * 2], s[n][r * 2 + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            float base = m == NEVER ? 0.0f : m; // no position seen yet
            float shrink = power(largest[r] - base);
            largest[r] = m;
            total[r] *= shrink;
#pragma unroll
            for (u32 n = 0; n < TILES_V; ++n) {
                o[n][r * 2] *= shrink;
                o[n][r * 2 + 1] *= shrink;
            }
#pragma unroll
            for (u32 n = 0; n < STEP / 8; ++n) {
                float x = power(s[n][r * 2] - base), y = power(s[n][r * 2 + 1] - base);
                total[r] += x + y;
                p[n / 2][n % 2 * 2 + r] = pack(x, y);
            }
        }
    }
};
