// Flash decoding of wide heads: see attention.cu for the division of the work, wide.cuh for that within a block. A job is one split
// of one row, for up to TILES * 8 heads that share keys. All of them read a position once.
// Macros: as in wide.cuh with TEAMS = 1 and EXACT = 1; GROUP (heads per kv head), LEAST_TILES (steps of a split).
#define TILE STEP
#define HEADS (TILES * 8)
#include "splits.cuh"
#include "wide.cuh"

__device__ void attend(const AttentionArgs &a, u8 *shared, const Job &job) {
    u32 t = threadIdx.x, head = job.first_head(), mine = job.heads();
    clear_padding(shared);
    Split split = split_of(a, job.at, job.index);
    Pages pages = {a.kv, job.at.slot, job.kv_head(), split.first, split.last, shared};
    pages.fetch(0, split.begin * STEP);
    pages.fetch(1, split.begin * STEP);
    const float *q = a.q + (u64)job.row * a.q_stride + (u64)head * HEAD_DIM;
    float factor = q_factor(a);
#pragma unroll 2
    for (u32 i = t; i < HEADS * CHUNKS; i += THREADS) {
        u32 h = i / CHUNKS, chunk = i % CHUNKS, high[4], low[4];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const float *x = q + (u64)h * HEAD_DIM + chunk * 8 + j * 2;
            pack_both(h < mine ? x[0] * factor : 0.0f, h < mine ? x[1] * factor : 0.0f, high[j], low[j]);
        }
        u32 row = h / 8 * 16 + h % 8;
        *(uint4 *)(shared + at_chunk<ROWS>(row, chunk)) = make_uint4(high[0], high[1], high[2], high[3]);
        *(uint4 *)(shared + at_chunk<ROWS>(row + 8, chunk)) = make_uint4(low[0], low[1], low[2], low[3]);
    }
    Sums sums;
    sums.begin();
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        sums.low[m][0] = (int)split.first;
        sums.high[m][0] = (int)split.last;
    }
    sums.walk(a, pages, split.begin, split.end);
    sums.finish(shared);

    bool whole = split.active == 1;
    float *y = a.y + (u64)job.row * a.y_stride + (u64)head * HEAD_DIM;
    Partials p = partials_of(a, job);
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        u32 h = m * 8 + sums.lane / 4;
        if (h >= mine) continue;
        float largest = sums.largest[m][0], total = sums.total[m][0];
        // The sink counts once: here, or where the splits are merged.
        float share = whole ? 1.0f / (total + sink_weight(a.sinks, head + h, largest)) : 1.0f;
        u64 split_at = (u64)h * a.splits + job.index;
        float *to = whole ? y + h * HEAD_DIM : (float *)p.sums + split_at * HEAD_DIM;
#pragma unroll
        for (u32 n = 0; n < COLUMNS; ++n) {
            u32 d = (sums.first_column + n) * 8 + sums.lane % 4 * 2;
            if (d >= HEAD_DIM) continue;
            to[d] = (sums.o[m][n][0] + sums.o[m][n][2]) * share;
            to[d + 1] = (sums.o[m][n][1] + sums.o[m][n][3]) * share;
        }
        if (!whole && t < 32 && sums.lane % 4 == 0) p.heads[split_at] = make_float2(largest, total);
    }
    if (!whole) merge_if_last(a, job, p, split.active, (float *)shared, y);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_wide(const __grid_constant__ AttentionArgs a) {
    extern __shared__ __align__(128) u8 shared[];
    grid_release();
    grid_wait();
    for_each_job(a, [&](const Job &job) { attend(a, shared, job); });
}
