// Flash attention of wide heads for many rows. A block takes ROWS rows of one head. Rows may belong to different sequences,
// and the block walks each of them in turn. See wide.cuh for the division of the work within a block.
// Macros: as in wide.cuh with EXACT = 0.
#include "wide.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_wide_prefill(const __grid_constant__ AttentionArgs a) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Places<ROWS> places;
    u32 head = blockIdx.x, first_row = (gridDim.y - 1 - blockIdx.y) * ROWS;
    clear_padding(shared);
    grid_release();
    grid_wait();
    u32 live = a.single ? 1 : a.step->live;
    if (a.step->ended || first_row >= live) return;
    load_rows<ROWS, WARPS * 32>(a, first_row, live, head, places, shared);
    __syncthreads();
    Sums sums;
    sums.begin();
    u32 row = sums.first_row + sums.lane / 4;
    for (u32 done = 0;;) { // slots below this number are done
        Span span = next_span(a, places, done);
        if (span.slot == NO_SLOT) break;
        done = span.slot + 1;
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < 2; ++r) places.limits(a, row + m * 16 + r * 8, span.slot, sums.low[m][r], sums.high[m][r]);
        Pages pages = {a.kv, span.slot, head / (a.heads / a.kv.heads), span.low, span.high, shared};
        pages.fetch(0, span.low / STEP * STEP);
        pages.fetch(1, span.low / STEP * STEP);
        sums.walk(a, pages, span.low / STEP, span.high / STEP + 1);
    }
    sums.finish(shared);
#pragma unroll
    for (u32 m = 0; m < TILES; ++m)
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            u32 of = first_row + row + m * 16 + r * 8;
            if (of >= live) continue;
            float *y = a.y + (u64)of * a.y_stride + head * HEAD_DIM;
            float share = 1.0f / (sums.total[m][r] + sink_weight(a.sinks, head, sums.largest[m][r]));
#pragma unroll
            for (u32 n = 0; n < COLUMNS; ++n) {
                u32 d = (sums.first_column + n) * 8 + sums.lane % 4 * 2;
                if (d >= HEAD_DIM) continue;
                y[d] = sums.o[m][n][r * 2] * share;
                y[d + 1] = sums.o[m][n][r * 2 + 1] * share;
            }
        }
}
