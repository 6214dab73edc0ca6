// Products of prompt rows on tensor cores: y[row][n] = sum over k of W[n][k] x[row][k]. Weights are widened to 16 bits on the fly.
// A block computes TILE_N matrix rows times TILE_ROWS rows of y. Every sum is one chain over k in steps of 16, from 0 on, in one
// accumulator. The bits of a sum therefore do not depend on the tile, and equal those of gemm_wide.cu.
// With experts, a tile's rows are entries of one expert, gathered from x, and its weights are those of that expert.
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), TILE_N (32, 128), TILE_ROWS (16, 32, 64, 128), STAGES,
// EXPERTS (0, 1).
#include "dequant.cuh"
#include "gemm.cuh"
#include "tile.cuh"

#define RAW_BYTES (256 * raw_bytes()) // encoded weights per chunk
// Each of the 256 threads widens 32 weights of a chunk.
#define UNITS (256 / TILE_N) // per matrix row
#define PANELS (UNITS / 2)   // of 64 elements of k
#define W_BYTES (TILE_N * PANELS * 128)
#define X_BYTES (TILE_ROWS * PANELS * 128)
// A warp computes WARP_N matrix rows times WARP_ROWS rows. Small tiles leave warps without sums.
#define LARGE (TILE_N == 128 && TILE_ROWS >= 32)
#define WARP_N (LARGE ? 32 : 16)
#define WARP_ROWS (LARGE ? TILE_ROWS / 2 : 16)
#define WARPS_ALONG_ROWS (TILE_ROWS / WARP_ROWS)

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BFLOAT
    mma_bf16(c, a, b0, b1);
#else
    mma_f16(c, a, b0, b1);
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const __grid_constant__ GemmArgs a) {
    extern __shared__ __align__(128) u8 shared[];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
#if EXPERTS
    // The tile's expert is known only after the wait.
    __shared__ u32 entries[TILE_ROWS];
    grid_release();
    grid_wait();
    if (blockIdx.x >= a.groups[0]) return;
    const Entries tile_of = ((const Entries*)(a.groups + 1))[blockIdx.x];
    const u32* const list = a.groups + 1 + 3 * gridDim.x;
    // Rows beyond the last repeat it; they are not stored.
    for (u32 i = thread; i < TILE_ROWS; i += 256) entries[i] = list[tile_of.first + min(i, tile_of.count - 1)];
    __syncthreads();
    const float* const bias = bias_of(a, tile_of.expert);
    const u32 first_row = 0, first_weight = tile_of.expert * (a.epilogue == ACT_MUL ? 2 : 1) * a.columns;
#else
    const u32* const entries = nullptr;
    const float* const bias = nullptr;
    const u32 first_row = blockIdx.x * TILE_ROWS, first_weight = 0;
#endif
    const u32 per_tile = a.epilogue == ACT_MUL ? TILE_N / 2 : TILE_N;
    const u32 first_n = blockIdx.y * per_tile;
    const u32 panels = (a.k + 63) / 64, chunks = (panels + PANELS - 1) / PANELS;
    u8* const weights = shared;                // [2][PANELS][TILE_N][64]
    u8* const rows = shared + 2 * W_BYTES;     // [STAGES][PANELS][TILE_ROWS][64]
    u8* const raw = rows + STAGES * X_BYTES;   // [STAGES][RAW_BYTES]
    const u32 rows_at = shared_address(rows), weights_at = shared_address(weights);

    const u32 my_row = thread / UNITS, my_unit = thread % UNITS;
    const u8* my_planes[MOST_PLANES];
    Planes(a.weight, a.n, a.k).row(first_weight + matrix_row(a, first_n, my_row), my_planes);
    auto fetch_weights = [&](u32 chunk) {
        if (chunk < chunks) copy_unit(raw + chunk % STAGES * RAW_BYTES, thread, 256, my_planes, a.k, UNITS * chunk + my_unit);
    };
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; i++) fetch_weights(i);
#if EXPERTS
    const u32 live = tile_of.count;
    static_assert(PANELS == 1 && TILE_ROWS >= 32, "tiles of entries");
    // Offsets of this thread's pieces in a chunk. The row number determines the swizzle of a row's pieces.
    u64 sources[X_BYTES / 16 / 256];
#pragma unroll
    for (u32 i = 0; i < X_BYTES / 16 / 256; i++) {
        const u32 r = (i * 256 + thread) / 8;
        sources[i] = (u64)(entries[r] / a.sharing) * 128 + ((thread ^ r ^ entries[r] / a.sharing) & 7) * 16;
    }
    const u8* x = (const u8*)a.x;
#else
    grid_release();
    grid_wait();
    const u32 live = a.step->live;
    if (first_row >= live) return;
    const u8* x = (const u8*)a.x + (u64)first_row * 128;
#endif
    const u64 panel_bytes = (u64)a.x_rows * 128;
    auto fetch = [&](u32 chunk) {
        if (chunk < chunks) {
            const u8* source = x + chunk * PANELS * panel_bytes;
            const u32 target = rows_at + chunk % STAGES * X_BYTES;
#pragma unroll
            for (u32 i = 0; i < (X_BYTES / 16 + 255) / 256; i++) {
                const u32 piece = i * 256 + thread;
                if (X_BYTES / 16 % 256 && piece >= X_BYTES / 16) break;
#if EXPERTS
                copy_async<16>(target + piece * 16, source + sources[i]);
#else
                // Panels beyond the last are zero.
                const u32 panel = piece / (TILE_ROWS * 8);
                const bool there = PANELS == 1 || chunk * PANELS + panel < panels;
                copy_async<16>(target + piece * 16, source + (there ? panel * panel_bytes : 0) + piece % (TILE_ROWS * 8) * 16, there);
#endif
            }
        }
        copy_commit();
    };
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; i++) fetch(i);

    const u32 warp_n = warp / WARPS_ALONG_ROWS * WARP_N, warp_row = warp % WARPS_ALONG_ROWS * WARP_ROWS;
    const bool multiplies = warp_n < TILE_N;
    float sums[WARP_N / 16][WARP_ROWS / 8][4];
#pragma unroll
    for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_ROWS / 8; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) sums[i][j][q] = 0;

    for (u32 chunk = 0; chunk < chunks; chunk++) {
        u8* const tile = weights + chunk % 2 * W_BYTES + my_unit / 2 * (TILE_N * 128);
        copy_wait<STAGES - 2>();
        uint4 wide[4];
        widen(take_unit(raw + chunk % STAGES * RAW_BYTES, thread, 256, a.k, UNITS * chunk + my_unit), wide);
#pragma unroll
        for (u32 i = 0; i < 4; i++) *(uint4*)(tile + tile_at(my_row, my_unit % 2 * 4 + i)) = wide[i];
        __syncthreads();
        fetch_weights(chunk + STAGES - 1);
        fetch(chunk + STAGES - 1);
        if (!multiplies) continue;

        const u32 tile_w = weights_at + chunk % 2 * W_BYTES;
        const u32 tile_x = rows_at + chunk % STAGES * X_BYTES;
#pragma unroll
        for (u32 step = 0; step < 4 * PANELS; step++) {
            const u32 k = step % 4, panel_w = tile_w + step / 4 * (TILE_N * 128), panel_x = tile_x + step / 4 * (TILE_ROWS * 128);
            u32 wa[WARP_N / 16][4];
#pragma unroll
            for (u32 i = 0; i < WARP_N / 16; i++) {
                // The order of mma's first operand: rows 0..8 and 8..16 at k, then both at k + 8.
                load_matrices(wa[i], panel_w + tile_at(warp_n + 16 * i + lane % 16, 2 * k + lane / 16));
            }
#pragma unroll
            for (u32 j = 0; j < WARP_ROWS / 16; j++) {
                u32 xb[4];
                // Rows 0..8 at k and k + 8, then rows 8..16.
                load_matrices(xb, panel_x + tile_at(warp_row + 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
                for (u32 i = 0; i < WARP_N / 16; i++) {
                    multiply(sums[i][2 * j], wa[i], xb[0], xb[1]);
                    multiply(sums[i][2 * j + 1], wa[i], xb[2], xb[3]);
                }
            }
        }
    }
    if (!multiplies) return;
#pragma unroll
    for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_ROWS / 8; j++) {
            finish(a, entries, bias, first_n, warp_n + 16 * i, first_row + warp_row + 8 * j + 2 * (lane % 4), live, sums[i][j]);
        }
}
