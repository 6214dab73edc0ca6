// Products of many rows on tensor cores: y[row][n] = sum over k of W[n][k] x[row][k]. Weights are widened to 16 bits on the fly.
// A block computes TILE_N matrix rows times TILE_ROWS rows of y for one range of k. Where k is split among blocks, the last
// block to finish adds the parts in order, so the bits do not depend on which block is last.
// With experts, a tile's rows are entries of one expert, gathered from x, and its weights are those of that expert.
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), TILE_ROWS (32, 64, 128), STAGES, EXPERTS (0, 1).
#include "dequant.cuh"
#include "gemm.cuh"
#include "tile.cuh"

#define RAW_BYTES (256 * raw_bytes()) // encoded weights per chunk
#define WARP_ROWS (TILE_ROWS / 2)

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BFLOAT
    mma_bf16(c, a, b0, b1);
#else
    mma_f16(c, a, b0, b1);
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const __grid_constant__ GemmArgs a) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u32 finished;
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
    const u32 first_row = 0, first_weight = tile_of.expert * (a.epilogue == ACT_MUL ? 2 : 1) * a.columns;
#else
    const u32* const entries = nullptr;
    const u32 first_row = blockIdx.x * TILE_ROWS, first_weight = 0;
#endif
    const u32 per_tile = a.epilogue == ACT_MUL ? TILE_N / 2 : TILE_N;
    const u32 first_n = blockIdx.y * per_tile;
    const u32 all_chunks = (a.k + 63) / 64;
    const u32 from = blockIdx.z * a.chunks_per_split, to = min(from + a.chunks_per_split, all_chunks);
    u8* const weights = shared;                   // [2][TILE_N][64]
    u8* const rows = shared + 2 * TILE_N * 128;   // [STAGES][TILE_ROWS][64]
    u8* const raw = rows + STAGES * TILE_ROWS * 128; // [STAGES][RAW_BYTES]
    const u32 rows_at = shared_address(rows), weights_at = shared_address(weights);

    // Two threads widen each row of the tile, 32 weights each.
    const u32 my_row = thread / 2, my_half = thread % 2;
    const u8* my_planes[MOST_PLANES];
    Planes(a.weight, a.n, a.k).row(first_weight + matrix_row(a, first_n, my_row), my_planes);
    auto fetch_weights = [&](u32 chunk) {
        if (chunk < to) copy_unit(raw + (chunk - from) % STAGES * RAW_BYTES, thread, 256, my_planes, a.k, 2 * chunk + my_half);
    };
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; i++) fetch_weights(from + i);
#if EXPERTS
    const u32 live = tile_of.count;
    // Offsets of this thread's pieces in a chunk. The row number determines the swizzle of a row's pieces.
    u64 sources[TILE_ROWS * 8 / 256];
#pragma unroll
    for (u32 i = 0; i < TILE_ROWS * 8 / 256; i++) {
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
    const u64 chunk_bytes = (u64)a.x_rows * 128;
    auto fetch = [&](u32 chunk) {
        if (chunk < to) {
            const u8* source = x + chunk * chunk_bytes;
            const u32 target = rows_at + (chunk - from) % STAGES * (TILE_ROWS * 128);
#pragma unroll
            for (u32 i = 0; i < TILE_ROWS * 8 / 256; i++) {
#if EXPERTS
                copy_async<16>(target + (i * 256 + thread) * 16, source + sources[i]);
#else
                copy_async<16>(target + (i * 256 + thread) * 16, source + (i * 256 + thread) * 16);
#endif
            }
        }
        copy_commit();
    };
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; i++) fetch(from + i);

    // A warp computes 32 matrix rows times WARP_ROWS rows.
    const u32 warp_n = warp / 2 * 32, warp_row = warp % 2 * WARP_ROWS;
    float sums[2][WARP_ROWS / 8][4];
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_ROWS / 8; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) sums[i][j][q] = 0;

    for (u32 chunk = from; chunk < to; chunk++) {
        u8* const tile = weights + (chunk - from) % 2 * (TILE_N * 128);
        copy_wait<STAGES - 2>();
        uint4 wide[4];
        widen(take_unit(raw + (chunk - from) % STAGES * RAW_BYTES, thread, 256, a.k, 2 * chunk + my_half), wide);
#pragma unroll
        for (u32 i = 0; i < 4; i++) *(uint4*)(tile + tile_at(my_row, my_half * 4 + i)) = wide[i];
        __syncthreads();
        fetch_weights(chunk + STAGES - 1);
        fetch(chunk + STAGES - 1);

        const u32 tile_w = weights_at + (chunk - from) % 2 * (TILE_N * 128);
        const u32 tile_x = rows_at + (chunk - from) % STAGES * (TILE_ROWS * 128);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 wa[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                // The order of mma's first operand: rows 0..8 and 8..16 at k, then both at k + 8.
                load_matrices(wa[i], tile_w + tile_at(warp_n + 16 * i + lane % 16, 2 * k + lane / 16));
            }
#pragma unroll
            for (u32 j = 0; j < WARP_ROWS / 16; j++) {
                u32 xb[4];
                // Rows 0..8 at k and k + 8, then rows 8..16.
                load_matrices(xb, tile_x + tile_at(warp_row + 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    multiply(sums[i][2 * j], wa[i], xb[0], xb[1]);
                    multiply(sums[i][2 * j + 1], wa[i], xb[2], xb[3]);
                }
            }
        }
    }

    const u32 splits = gridDim.z;
    if (splits > 1) {
        const u32 tile = blockIdx.y * gridDim.x + blockIdx.x;
        float* const mine = a.parts + ((u64)tile * splits + blockIdx.z) * (TILE_N * TILE_ROWS);
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < WARP_ROWS / 8; j++) {
                const float4 v = make_float4(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]);
                *(float4*)(mine + ((i * (WARP_ROWS / 8) + j) * 256 + thread) * 4) = v;
            }
        __threadfence();
        __syncthreads();
        if (thread == 0) finished = atomicAdd(a.done + tile, 1);
        __syncthreads();
        if (finished != splits - 1) return;
        __threadfence();
        const float* const parts = a.parts + (u64)tile * splits * (TILE_N * TILE_ROWS);
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < WARP_ROWS / 8; j++) {
                float4 all = make_float4(0, 0, 0, 0);
                for (u32 s = 0; s < splits; s++) {
                    const float* part = parts + (u64)s * (TILE_N * TILE_ROWS);
                    const float4 v = __ldcg((const float4*)(part + ((i * (WARP_ROWS / 8) + j) * 256 + thread) * 4));
                    all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
                }
                sums[i][j][0] = all.x, sums[i][j][1] = all.y, sums[i][j][2] = all.z, sums[i][j][3] = all.w;
            }
        if (thread == 0) a.done[tile] = 0;
    }

#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_ROWS / 8; j++) {
            finish(a, entries, first_n, warp_n + 16 * i, first_row + warp_row + 8 * j + 2 * (lane % 4), live, sums[i][j]);
        }
}
