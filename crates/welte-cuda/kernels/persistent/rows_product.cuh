// Products of a matrix with the vectors of several rows of a step: what comes out of the ring is multiplied with the slices of
// all of them before it is given back, so that weights are streamed once. Everything else is as for one row
// (persistent/product.cuh).
#pragma once
#include "persistent/tile.cuh"

constexpr u32 MOST_ROUNDS_AHEAD = 10;

// A warp's slice of the n-th row that is multiplied, and of those that lie together with it.
template <class V> __device__ __forceinline__ u8 *slice_of(Shared *s, u32 n, u32 warp) {
    constexpr u32 TOGETHER = ROWS_TOGETHER<V>;
    return s->work + (warp * ((s->live + TOGETHER - 1) / TOGETHER) + n / TOGETHER) * SLICE<V>;
}

// The first row that a product is made for: logits may be wanted of the last one only.
template <class V> __device__ __forceinline__ u32 first_row(const RowsArgs &a) { return V::output == LOGITS ? a.first : 0; }

template <class V, u32 ROUNDS> __device__ __forceinline__ void put_row(u8 *slice, u32 n, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
    if constexpr (V::Format::BLOCKS) put_words<V>(slice, n % 2, lane, v);
    else if constexpr (HAS_TILES<typename V::Format>) put_pairs<V>(slice, lane, v);
    else put<V>(slice, lane, quads, v);
    __syncwarp();
}

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
    if (warp == 0 && lane == 0) s->signals.hungry = FOR_INPUT;
    u32 first = first_row<V>(a);
    receive<ROUNDS>(w, x + first * EXCHANGED, tag, lane, intake.quads, got);
#pragma unroll 1
    for (u32 row = first; row < s->live; row++) {
        bool more = row + 1 < s->live;
        const float *from = x + (row + 1) * EXCHANGED;
        // Asked for or not, `next` is something now: otherwise its registers would be kept from layer to layer.
        ask(from, tag, lane, AHEAD && more ? intake.quads : 0, next);
        float v[ROUNDS][4];
        intake.weigh(got, lane, v, &s->squares[parity * STEP_ROWS + row][warp]);
        put_row<V>(slice_of<V>(s, row - first, warp), row - first, lane, intake.quads, v);
        if (!more) break;
        if (!AHEAD) ask(from, tag, lane, intake.quads, next);
        complete(w, from, tag, lane, next);
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) got[r] = next[r];
    }
    if (warp == 0 && lane == 0) s->signals.hungry = 0;
}

// Row after row, with what one row is multiplied by.
template <class V> struct OneByOne {
    Units<V> units;

    __device__ __forceinline__ void begin(const Work<V> &work) { units.begin(work.warp, work.lane); }

    __device__ __forceinline__ void multiply(const Ring &ring, const Work<V> &work) const {
#pragma unroll 1
        for (u32 row = 0; row < work.rows; row++) {
            Held<V, false> x;
            x.load(work.slice(row), units);
            rows_of<V>(x, units, ring.slot<V>(), work.parts + row * Work<V>::ROW_PARTS, work.done, work.here, work.lane);
        }
    }
};

template <class V, u32 GROUPS, bool BLOCKS, bool TILES> struct MultiplierOf { using Type = OneByOne<V>; };
template <class V, u32 GROUPS> struct MultiplierOf<V, GROUPS, false, true> { using Type = Floats<V>; };
template <class V, u32 GROUPS> struct MultiplierOf<V, GROUPS, true, true> { using Type = Operand<V, GROUPS>; };
// What multiplies what comes out of the ring with so many groups of rows.
template <class V, u32 GROUPS> using Multiplier = typename MultiplierOf<V, GROUPS, V::Format::BLOCKS, HAS_TILES<typename V::Format>>::Type;

// The product, once its input is staged.
template <class V, u32 GROUPS>
__device__ __forceinline__ void go_through_rows(Watch &w, Shared *s, Ring &ring, const RowsArgs &a, const Instruction &in, const Share &share, u32 parity, u32 &half) {
    using L = Slot<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    constexpr u32 STEP = Tiles<V>::STEP, SEGMENT = OUTPUTS / L::SETS / STEP * STEP, EACH = (SEGMENT * STEP_ROWS + CONSUMERS - 1) / CONSUMERS;
    static_assert(SEGMENT > 0, "too little room for outputs");
    if constexpr (V::Format::BLOCKS) static_assert(SIDE<typename V::Format> == V::side, "the host knows other blocks");
    u32 from = first_row<V>(a), live = s->live - from, tag = tag_of(0, in.writes_per_turn, in.writes);
    Work<V> work = {slice_of<V>(s, 0, warp), live, nullptr, 0, 0, 0, warp, lane};
    Multiplier<V, GROUPS> multiplier;
    multiplier.begin(work);
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
        work.parts = parts[from][warp];
        for (work.done = 0; work.done < here; work.done += STEP) {
            work.here = min(STEP, here - work.done);
            work.slots = (work.here + V::rows - 1) / V::rows;
            ring.take(w, work.slots);
            multiplier.multiply(ring, work);
            for (u32 i = 0; i < work.slots; i++) ring.give<V>(lane);
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

template <class V>
__device__ __forceinline__ void product_rows(Watch &w, Shared *s, Ring &ring, const RowsArgs &a, const Instruction &in, const Share &share, u32 &parity, u32 &half) {
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        stage_rows<V>(w, s, a, in, parity, warp, lane);
    }
    constexpr bool SECOND = V::Format::BLOCKS && STEP_ROWS > GROUP_ROWS;
    if (SECOND && s->live - first_row<V>(a) > GROUP_ROWS) go_through_rows<V, SECOND ? 2 : 1>(w, s, ring, a, in, share, parity, half);
    else go_through_rows<V, 1>(w, s, ring, a, in, share, parity, half);
}
