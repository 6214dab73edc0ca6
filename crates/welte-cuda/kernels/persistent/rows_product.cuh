// Products of a matrix with the vectors of several rows of a step: a slot of the ring is multiplied with the slices of all of
// them before it is given back, so that weights are streamed once. Everything else is as for one row (persistent/product.cuh).
#pragma once
#include "persistent/product.cuh"
#include "persistent/rows.cuh"

constexpr u32 MOST_ROUNDS_AHEAD = 10;

// A warp's slice of a row; that of the next row lies WARPS slices further on.
template <class V> __device__ __forceinline__ u8 *slice_of(Shared *s, u32 row, u32 warp) { return s->work + (row * WARPS + warp) * Part<V>::BYTES; }

// The first row that a product is made for: logits may be wanted of the last one only.
template <class V> __device__ __forceinline__ u32 first_row(const RowsArgs &a) { return V::output == LOGITS ? a.first : 0; }

// This warp's slices of the rows' vectors: while one is put into shared memory the next is on its way, if there are registers
// for two.
template <class V> __device__ __forceinline__ void stage_rows(Watch &w, Shared *s, const RowsArgs &a, const Instruction &in, u32 parity, u32 warp, u32 lane) {
    constexpr u32 ROUNDS = Intake<V>::ROUNDS;
    Intake<V> intake;
    intake.begin(in, warp, lane);
    u32 tag = tag_of(0, in.reads_per_turn, in.reads);
    const float *x = a.exchange + in.in + intake.first;
    constexpr bool AHEAD = ROUNDS <= MOST_ROUNDS_AHEAD;
    uint4 got[ROUNDS], next[ROUNDS];
    if (warp == 0 && lane == 0) s->hungry = 1;
    u32 first = first_row<V>(a);
    receive<ROUNDS>(w, x + first * EXCHANGED, tag, lane, intake.quads, got);
#pragma unroll 1
    for (u32 row = first; row < s->live; row++) {
        bool more = row + 1 < s->live;
        const float *from = x + (row + 1) * EXCHANGED;
        // Asked for or not, `next` is something now: otherwise its registers would be kept from layer to layer.
        ask(from, tag, lane, AHEAD && more ? intake.quads : 0, next);
        intake.put_into(slice_of<V>(s, row, warp), got, lane, &s->squares[parity * STEP_ROWS + row][warp]);
        if (!more) break;
        Wait wait;
        if (!AHEAD) ask(from, tag, lane, intake.quads, next);
        complete(w, wait, from, tag, lane, next);
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) got[r] = next[r];
    }
    if (warp == 0 && lane == 0) s->hungry = 0;
}

template <class V>
__device__ __forceinline__ void product_rows(Watch &w, Shared *s, Ring &ring, const RowsArgs &a, const Instruction &in, const Share &share, u32 &parity, u32 &half) {
    using L = Slot<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        stage_rows<V>(w, s, a, in, parity, warp, lane);
    }
    Units<V> units;
    units.begin(warp, lane);
    constexpr u32 SEGMENT = OUTPUTS / L::SETS / V::rows * V::rows, EACH = (SEGMENT * STEP_ROWS + CONSUMERS - 1) / CONSUMERS;
    static_assert(SEGMENT > 0, "too little room for outputs");
    u32 from = first_row<V>(a), live = s->live - from, tag = tag_of(0, in.writes_per_turn, in.writes);
    for (u32 begin = 0; begin < share.rows; begin += SEGMENT, half ^= 1) {
        u32 here = min(SEGMENT, share.rows - begin), first = share.first + begin;
        float(*parts)[WARPS][OUTPUTS] = s->parts + half * STEP_ROWS;
        // A thread's results: of row at / here, of the matrix's row at % here.
        float before[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = tid + i * CONSUMERS;
            before[i] = 0.0f;
            if (at >= here * live) continue;
            if (V::output == ADD) before[i] = value(glance(exchange_of(a, from + at / here) + in.out + first + at % here));
            if (V::bias) before[i] = __ldg((const float *)in.vectors[1] + V::bias_at + first + at % here);
        }
        for (u32 done = 0; done < here; done += V::rows) {
            const u8 *slot = ring.take(w);
#pragma unroll 1
            for (u32 row = from; row < s->live; row++) {
                Held<V, V::Format::BLOCKS> x;
                x.load(slice_of<V>(s, row, warp), units);
                rows_of<V>(x, units, slot, parts[row][warp], done, min((u32)V::rows, here - done), lane);
            }
            ring.give(lane);
        }
        consumers_meet();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = tid + i * CONSUMERS;
            if (at >= here * live) continue;
            u32 row = from + at / here, n = at % here;
            float v = result<V>(parts[row], n, norm_factor<V>(s->squares[parity * STEP_ROWS + row]), before[i]);
            if constexpr (V::output == LOGITS) {
                a.logits[(u64)(row - from) * V::n + first + n] = v;
            } else if (!is_mute(a)) {
                publish(exchange_of(a, row) + in.out + first + n, v, tag);
            }
        }
    }
    w.since = (u32)clock64();
}
