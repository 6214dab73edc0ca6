// Attention of heads of more than 256 elements: latents (DeepSeek, GLM) and the full layers of Gemma 4. The sums of such heads do
// not fit the registers of one warp. So WARPS / TEAMS warps form a team that works on the same rows: each warp computes the
// scores of some positions, passes their weights on in shared memory, and sums some of the dimensions.
// Macros: HEAD_DIM (a multiple of 8), PAGE, KV_Q8, WARPS, TEAMS, TILES (of 16 rows per team), STEP (32 or 64), EXACT: rows 0-7 of
// a tile are heads rounded to f16, rows 8-15 their rounding errors, as in attention.cu.
#pragma once
#include "prompt.cuh"

constexpr u32 TEAM = WARPS / TEAMS;             // warps
constexpr u32 ROWS = TEAMS * TILES * 16;        // of a block
constexpr u32 POSITIONS = STEP / TEAM;          // whose scores a warp computes
constexpr u32 COLUMNS = WIDE / 8 / TEAM;        // of eight dimensions, which a warp sums
constexpr u32 KINDS = EXACT ? 1 : 2;            // of rows that a lane has in a tile: a head's two rows share everything but sums
constexpr bool WHOLE_PAGES = PAGE % STEP == 0;
static_assert(POSITIONS % 8 == 0 && WIDE / 8 % TEAM == 0, "a team divides positions and dimensions evenly");

// Shared memory: queries, keys, values, weights, the warps' maxima or totals.
constexpr u32 PART_BYTES = STEP * WIDE * 2;
constexpr u32 KEYS = ROWS * WIDE * 2;
constexpr u32 VALUES = KEYS + PART_BYTES;
constexpr u32 WEIGHTS = VALUES + PART_BYTES;
constexpr u32 REDUCED = WEIGHTS + ROWS * 128;

// Dimensions beyond the head's are zero.
__device__ __forceinline__ void clear_padding(u8 *shared) {
    if constexpr (WIDE != HEAD_DIM) {
        for (u32 i = threadIdx.x; i < WEIGHTS / 16; i += WARPS * 32) ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
}

struct Pages {
    const Kv &kv;
    u32 slot, head, first, last;
    u8 *shared;

    __device__ __forceinline__ const u8 *from(u32 part, u32 position) const {
        return kv_head(kv, part, kv_page(kv, slot, position), head) + (u64)(position % PAGE) * KV_ROW;
    }

    // Starts copying the keys (part 0) or values (part 1) of STEP positions. Those outside first ..= last become zeros.
    __device__ __forceinline__ void fetch(u32 part, u32 at) const {
        u8 *to = shared + KEYS + part * PART_BYTES;
        const u8 *page = WHOLE_PAGES ? from(part, at) : nullptr;
#pragma unroll 2
        for (u32 c = threadIdx.x; c < STEP * CHUNKS; c += WARPS * 32) {
            u32 row = c / CHUNKS, index = c % CHUNKS, position = at + row;
            bool wanted = position >= first && position <= last;
            const u8 *p = WHOLE_PAGES ? page + row * KV_ROW : from(part, wanted ? position : last);
            u32 place = at_chunk<STEP>(row, index);
            if constexpr (KV_Q8) *(uint4 *)(to + place) = wanted ? q8_chunk(p, index) : make_uint4(0, 0, 0, 0);
            else copy_async<16>(shared_address(to) + place, p + index * 16, wanted);
        }
        copy_commit();
    }
};

// What a warp holds of its team's rows. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 of each tile.
struct Sums {
    float o[TILES][COLUMNS][4];
    float s[TILES][POSITIONS / 8][4];
    float largest[TILES][KINDS], total[TILES][KINDS]; // the total is of this warp's positions
    int low[TILES][KINDS], high[TILES][KINDS];        // positions that the rows attend to
    u32 lane, warp, first_row, first_key, first_column;

    __device__ __forceinline__ void begin() {
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        first_row = warp / TEAM * TILES * 16;
        first_key = warp % TEAM * POSITIONS;
        first_column = warp % TEAM * COLUMNS;
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
            for (u32 n = 0; n < COLUMNS; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0;
#pragma unroll
            for (u32 r = 0; r < KINDS; ++r) {
                largest[m][r] = NEVER;
                total[m][r] = 0;
            }
        }
    }

    // Where a row's maximum over the positions of a warp of its team lies.
    __device__ __forceinline__ float *reduced(u8 *shared, u32 of_warp, u32 m, u32 r) const {
        return (float *)(shared + REDUCED) + (of_warp * TILES + m) * 16 + lane / 4 + r * 8;
    }

    // Computes the scores of this warp's positions of the step at `at`, and stores their maxima.
    __device__ __forceinline__ void score(const AttentionArgs &a, u8 *shared, int at) {
        u32 queries = shared_address(shared), keys = queries + KEYS;
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 n = 0; n < POSITIONS / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll 1
        for (u32 k = 0; k < WIDE / 32; ++k) { // two steps of 16 dimensions
            u32 q[TILES][2][4];
#pragma unroll
            for (u32 m = 0; m < TILES; ++m)
#pragma unroll
                for (u32 j = 0; j < 2; ++j)
                    load_matrices(q[m][j], queries + at_chunk<ROWS>(first_row + m * 16 + lane % 16, k * 4 + j * 2 + lane / 16));
#pragma unroll
            for (u32 n = 0; n < POSITIONS / 8; ++n) {
                u32 b[4];
                load_matrices(b, keys + at_chunk<STEP>(first_key + n * 8 + lane % 8, k * 4 + lane / 8));
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
                    mma_f16(s[m][n], q[m][0], b[0], b[1]);
                    mma_f16(s[m][n], q[m][1], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < KINDS; ++r) {
                float most = NEVER;
#pragma unroll
                for (u32 n = 0; n < POSITIONS / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = s[m][n][r * 2 + i];
                        if constexpr (EXACT) score += s[m][n][2 + i];
                        int position = at + (int)(first_key + n * 8 + lane % 4 * 2 + i);
                        score = position >= low[m][r] && position <= high[m][r] ? capped(a, score) : NEVER;
                        most = fmaxf(most, score);
                    }
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                if (lane % 4 == 0) *reduced(shared, warp, m, r) = most;
            }
    }

    // Once the team has stored its maxima: stores the weights of this warp's positions, and rescales the sums.
    __device__ __forceinline__ void weigh(u8 *shared) {
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < KINDS; ++r) {
                float most = largest[m][r];
#pragma unroll
                for (u32 w = 0; w < TEAM; ++w) most = fmaxf(most, *reduced(shared, warp / TEAM * TEAM + w, m, r));
                float base = most == NEVER ? 0.0f : most; // no position seen yet
                float shrink = power(largest[m][r] - base);
                largest[m][r] = most;
                total[m][r] *= shrink;
#pragma unroll
                for (u32 n = 0; n < COLUMNS; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4 / KINDS; ++i) o[m][n][r * 2 + i] *= shrink;
                u8 *row = shared + WEIGHTS + lane % 4 * 4;
                u32 index = first_row + m * 16 + lane / 4 + r * 8;
#pragma unroll
                for (u32 n = 0; n < POSITIONS / 8; ++n) {
                    float x = power(s[m][n][r * 2] - base), y = power(s[m][n][r * 2 + 1] - base);
                    total[m][r] += x + y;
                    u32 high, low, chunk = first_key / 8 + n;
                    pack_both(x, y, high, low);
                    *(u32 *)(row + at_chunk<ROWS>(index, chunk)) = high;
                    if constexpr (EXACT) *(u32 *)(row + at_chunk<ROWS>(index + 8, chunk)) = low;
                }
            }
    }

    // Once weights and values are there: adds the values.
    __device__ __forceinline__ void add(u8 *shared) {
        u32 weights = shared_address(shared) + WEIGHTS, values = shared_address(shared) + VALUES;
#pragma unroll 1
        for (u32 k = 0; k < STEP / 32; ++k) { // two steps of 16 positions
            u32 p[TILES][2][4];
#pragma unroll
            for (u32 m = 0; m < TILES; ++m)
#pragma unroll
                for (u32 j = 0; j < 2; ++j)
                    load_matrices(p[m][j], weights + at_chunk<ROWS>(first_row + m * 16 + lane % 16, k * 4 + j * 2 + lane / 16));
#pragma unroll
            for (u32 n = 0; n < COLUMNS; ++n) {
                u32 b[4];
                load_matrices_turned(b, values + at_chunk<STEP>(k * 32 + lane, first_column + n));
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
                    mma_f16(o[m][n], p[m][0], b[0], b[1]);
                    mma_f16(o[m][n], p[m][1], b[2], b[3]);
                }
            }
        }
    }

    // The steps begin .. end of one sequence. All warps of the block call it. The first step is being copied already.
    __device__ __forceinline__ void walk(const AttentionArgs &a, const Pages &pages, u32 begin, u32 end) {
        for (u32 step = begin; step < end; ++step) {
            if (step == begin) copy_wait<1>();
            else copy_wait<0>();
            __syncthreads(); // the keys are there, and the values before are no longer used
            if (step != begin) pages.fetch(1, step * STEP);
            score(a, pages.shared, (int)(step * STEP));
            __syncthreads();
            if (step + 1 < end) pages.fetch(0, (step + 1) * STEP);
            else copy_commit();
            weigh(pages.shared);
            copy_wait<1>();
            __syncthreads();
            add(pages.shared);
        }
        __syncthreads();
    }

    // Adds up the totals of the team's warps. All warps of the block call it, after the last step.
    __device__ __forceinline__ void finish(u8 *shared) {
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < KINDS; ++r) {
                total[m][r] += __shfl_xor_sync(~0u, total[m][r], 1);
                total[m][r] += __shfl_xor_sync(~0u, total[m][r], 2);
                if (lane % 4 == 0) *reduced(shared, warp, m, r) = total[m][r];
            }
        __syncthreads();
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < KINDS; ++r) {
                total[m][r] = 0;
#pragma unroll
                for (u32 w = 0; w < TEAM; ++w) total[m][r] += *reduced(shared, warp / TEAM * TEAM + w, m, r);
            }
    }
};
