// Flash attention of encoders: a block takes a tile of rows of one text and one head, 16 rows per warp. It walks the text in
// steps of STEP rows, counted from the text's first row, so the bits of a row do not depend on other texts. q, k, v and the
// weights are f16; sums are f32. Grid: (tiles, heads); a block takes further tiles if there are more.
// Macros: HEAD_DIM (a multiple of 8), ALIGNED (1: rows of qkv begin at multiples of 16 bytes), PLACES (1: rows have places).
#include "encode.cuh"
#include "flash.cuh"

constexpr u32 WARPS = 4, THREADS = WARPS * 32, ROWS = WARPS * 16;

// Copies rows of a head to shared memory as f16: `from` says where the values of a row are. Rows from `count` on become zeros.
template <class From> __device__ __forceinline__ void fetch(u8 *to, From from, u32 count, float factor) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < STEP * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < count) {
            const float *at = from(row) + chunk * 8;
            float x[8];
            if constexpr (ALIGNED) {
                *(float4 *)x = *(const float4 *)at;
                *(float4 *)(x + 4) = *(const float4 *)(at + 4);
            } else {
#pragma unroll
                for (u32 j = 0; j < 8; ++j) x[j] = at[j];
            }
            v = make_uint4(pack(x[0] * factor, x[1] * factor), pack(x[2] * factor, x[3] * factor), pack(x[4] * factor, x[5] * factor), pack(x[6] * factor, x[7] * factor));
        }
        *(uint4 *)(to + at_chunk<STEP>(row, chunk)) = v;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) encode_attention_tiles(const __grid_constant__ EncodeArgs a) {
    static_assert(ROWS == STEP, "queries are fetched as keys are");
    constexpr u32 PART_BYTES = STEP * WIDE * 2;
    extern __shared__ __align__(128) u8 shared[]; // queries, keys, values
    u8 *keys = shared + PART_BYTES, *values = keys + PART_BYTES;
    u32 t = threadIdx.x, lane = t % 32, warp_row = t / 32 * 16, head = blockIdx.y;
    if constexpr (WIDE != HEAD_DIM)
        for (u32 i = t; i < 3 * PART_BYTES / 16; i += THREADS) ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
    grid_release();
    grid_wait();
    if (a.step->ended) return;
    u32 q = head * HEAD_DIM, k = (a.heads + head / (a.heads / a.kv_heads)) * HEAD_DIM, v = k + a.kv_heads * HEAD_DIM;
    float slope = slope_of(a, head);
    for (u32 nth = blockIdx.x; nth < a.tiles->count; nth += gridDim.x) {
        u32 row = a.tiles->tile[nth].row, first = a.tiles->tile[nth].first, end = a.tiles->tile[nth].end;
        u32 rows = min(ROWS, end - row);
        end = seen_end(a, first, end);
        Rectangle places = {};
        if constexpr (PLACES) {
            places = rectangle_of(a, first, end);
            if (a.absent) end = first + a.places * a.places;
        }
        auto values_of = [&](u32 part, u32 start) {
            return [=, &a](u32 nth) { return (PLACES ? key_of(a, places, start + nth) : a.qkv + (u64)(start + nth) * a.qkv_stride) + part; };
        };
        // Rows that the tile sees.
        u32 low = first, high = end - 1;
        if (a.window) {
            low = max(low, row > a.window ? row - a.window : 0);
            high = min(high, row + rows - 1 + a.window);
        }
        __syncthreads(); // the last tile's operands are no longer used
        fetch(shared, [&](u32 nth) { return a.qkv + (u64)(row + nth) * a.qkv_stride + q; }, rows, a.scale * LOG2E);
        Tile tile;
#pragma unroll
        for (u32 n = 0; n < TILES_V; ++n) tile.o[n][0] = tile.o[n][1] = tile.o[n][2] = tile.o[n][3] = 0;
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            u32 mine = row + warp_row + lane / 4 + r * 8;
            bool there = mine < row + rows;
            tile.largest[r] = NEVER;
            tile.total[r] = 0;
            tile.low[r] = there ? (int)(a.window ? max(first, mine > a.window ? mine - a.window : 0) : first) : 0x7fffffff;
            tile.high[r] = there ? (int)(a.window ? min(end - 1, mine + a.window) : end - 1) : -1;
            if (a.by_reach && there) {
                const Row &own = a.step->rows[mine];
                tile.high[r] = min(tile.high[r], (int)(mine + own.reach - own.position));
            }
        }
        for (u32 at = first + (low - first) / STEP * STEP; at <= high; at += STEP) {
            __syncthreads();
            fetch(keys, values_of(k, at), end - at, 1.0f);
            fetch(values, values_of(v, at), end - at, 1.0f);
            __syncthreads();
            if (warp_row >= rows) continue;
            float s[STEP / 8][4] = {};
#pragma unroll
            for (u32 i = 0; i < STEPS_K; ++i) {
                u32 x[4];
                load_matrices(x, shared_address(shared) + at_chunk<STEP>(warp_row + lane % 16, i * 2 + lane / 16));
#pragma unroll
                for (u32 n = 0; n < STEP / 16; ++n) {
                    u32 b[4];
                    load_matrices(b, shared_address(keys) + at_chunk<STEP>(n * 16 + lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2));
                    mma_f16(s[n * 2], x, b[0], b[1]);
                    mma_f16(s[n * 2 + 1], x, b[2], b[3]);
                }
            }
            if (a.softcap != 0.0f)
#pragma unroll
                for (u32 n = 0; n < STEP / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) s[n][i] = capped(a, s[n][i]);
            if (slope != 0.0f)
#pragma unroll
                for (u32 n = 0; n < STEP / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4; ++i)
                        s[n][i] -= slope * away(row + warp_row + lane / 4 + i / 2 * 8, at + n * 8 + lane % 4 * 2 + i % 2);
            if constexpr (PLACES)
#pragma unroll
                for (u32 n = 0; n < STEP / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        u32 mine = warp_row + lane / 4 + i / 2 * 8, key = at + n * 8 + lane % 4 * 2 + i % 2;
                        if (mine < rows && key < end) s[n][i] += near(a, places, HEAD_DIM, head, row + mine, key) * LOG2E;
                    }
            u32 p[STEP / 16][4];
            tile.take(s, at, lane % 4, p);
#pragma unroll
            for (u32 i = 0; i < STEP / 16; ++i)
#pragma unroll
                for (u32 n = 0; n < TILES_V / 2; ++n) {
                    u32 b[4];
                    load_matrices_turned(b, shared_address(values) + at_chunk<STEP>(i * 16 + lane % 16, n * 2 + lane / 16));
                    mma_f16(tile.o[n * 2], p[i], b[0], b[1]);
                    mma_f16(tile.o[n * 2 + 1], p[i], b[2], b[3]);
                }
        }
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float total = tile.total[r];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            u32 mine = warp_row + lane / 4 + r * 8;
            if (mine >= rows) continue;
            float *y = a.y + (u64)(row + mine) * a.y_stride + head * HEAD_DIM + lane % 4 * 2, share = 1.0f / total;
#pragma unroll
            for (u32 n = 0; n < TILES_V; ++n)
                if (n * 8 < HEAD_DIM) {
                    y[n * 8] = tile.o[n][r * 2] * share;
                    y[n * 8 + 1] = tile.o[n][r * 2 + 1] * share;
                }
        }
    }
}
