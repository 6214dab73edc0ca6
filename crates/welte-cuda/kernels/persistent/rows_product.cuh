// Products of a matrix with the vectors of several rows of a step. A slot of the ring is multiplied with the slices of all rows before
// it is released, so weights are streamed once. The rest is the code for one row (product.cuh). Every row has the bits that it has alone.
#pragma once
#include "persistent/rows_tensor.cuh"

constexpr u32 MOST_ROUNDS_AHEAD = 10;

// A warp's slice of the n-th row, and of the rows stored together with it.
template <class V> __device__ __forceinline__ u8 *slice_of(Shared *s, u32 n, u32 warp) {
    constexpr u32 TOGETHER = ROWS_TOGETHER<V>;
    return s->scratchpad + (warp * ((s->live + TOGETHER - 1) / TOGETHER) + n / TOGETHER) * SLICE_BYTES<V>;
}

template <class V, u32 ROUNDS> __device__ __forceinline__ void store_row(u8 *slice, u32 n, u32 lane, u32 quads, const float (&v)[ROUNDS][4]) {
    constexpr u32 LANES = SliceLoader<V>::LANES;
    if constexpr (V::Format::BLOCKS) store_words<V>(slice, n % 2, lane, v);
    else if constexpr (V::chunks != 0) store_split<V, ROUNDS, LANES>(slice + lane / LANES * Pieces<V>::BYTES, lane % LANES, quads, v);
    else store_floats<V>(slice, lane, quads, v);
    __syncwarp();
}

// Stages this warp's slices of all rows, or their pieces from a chunk on. While one row is stored the next is loaded, if there are
// registers for both.
template <class V>
__device__ __forceinline__ void stage_rows(WaitContext &w, Shared *s, const RowsArgs &a, const Instruction &in, u32 chunk, u32 parity, u32 warp, u32 lane) {
    using Loader = SliceLoader<V>;
    constexpr u32 ROUNDS = Loader::ROUNDS, LANES = Loader::LANES;
    Loader loader;
    loader.begin(in, chunk, warp, lane);
    u32 at = loader.at;
    u32 tag = tag_of(0, in.reads_per_turn, in.reads);
    const float *x = a.exchange + in.input + loader.first;
    constexpr bool AHEAD = ROUNDS <= MOST_ROUNDS_AHEAD;
    uint4 got[ROUNDS], next[ROUNDS];
    if (warp == 0 && lane == 0) s->signals.awaiting = AWAITS_INPUT;
    receive<ROUNDS, LANES>(w, x, tag, at, loader.quads, got);
#pragma unroll 1
    for (u32 row = 0; row < s->live; row++) {
        bool more = row + 1 < s->live;
        const float *from = x + (row + 1) * EXCHANGE_FLOATS;
        // Load `next` in any case: otherwise the compiler keeps its registers alive from layer to layer.
        request<ROUNDS, LANES>(from, tag, at, AHEAD && more ? loader.quads : 0, next);
        float v[ROUNDS][4];
        loader.apply_norm(got, lane, v, &s->squares[parity * STEP_ROWS + row][warp]);
        store_row<V>(slice_of<V>(s, row, warp), row, lane, loader.quads, v);
        if (!more) break;
        if (!AHEAD) request<ROUNDS, LANES>(from, tag, at, loader.quads, next);
        await_fresh<ROUNDS, LANES>(w, from, tag, at, next);
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) got[r] = next[r];
    }
    if (warp == 0 && lane == 0) s->signals.awaiting = 0;
}

// Multiplies row by row, with the code for one row: F16 and F32.
template <class V> struct RowByRowMultiplier {
    LaneUnits<V> units;

    __device__ __forceinline__ void begin(const WarpTask<V> &task) { units.begin(task.warp, task.lane); }

    __device__ __forceinline__ void multiply(const Ring &ring, const WarpTask<V> &task) const {
#pragma unroll 1
        for (u32 row = 0; row < task.rows; row++) {
            LaneInput<V, false> x;
            x.load(task.slice(row), units);
            float *parts = task.parts + row * WarpTask<V>::ROW_PARTS;
            multiply_slot<V>(x, units, ring.slot<V>(), task.done, task.here, task.lane, [=](u32 at, float sum) { parts[at] = sum; });
        }
    }
};

template <class V, u32 GROUPS, bool BLOCKS, bool TENSOR> struct MultiplierOf { using Type = RowByRowMultiplier<V>; };
template <class V, u32 GROUPS> struct MultiplierOf<V, GROUPS, true, false> { using Type = BlockMultiplier<V, GROUPS>; };
template <class V, u32 GROUPS> struct MultiplierOf<V, GROUPS, false, true> { using Type = RowsTensorMultiplier<V, GROUPS>; };
// The multiplier of a format for GROUPS groups of rows.
template <class V, u32 GROUPS> using Multiplier = typename MultiplierOf<V, GROUPS, V::Format::BLOCKS, V::chunks != 0>::Type;

// The chunks that are multiplied one after the other, and whether each is staged by itself.
template <class V> constexpr u32 PASSES = BY_CHUNKS<V> ? V::chunks : 1;
template <class V> constexpr bool STAGES_CHUNKS = BY_CHUNKS<V> && V::staged == 1;

// The product, once its input is staged.
template <class V, u32 GROUPS>
__device__ __forceinline__ void multiply_rows(WaitContext &w, Shared *s, Ring &ring, const RowsArgs &a, const Instruction &in, const Share &share, u32 parity, u32 &half) {
    using L = Slot<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    constexpr u32 STEP = Tiles<V>::STEP, SEGMENT = L::STEP_SEGMENT, EACH = (SEGMENT * STEP_ROWS + CONSUMERS - 1) / CONSUMERS;
    static_assert(SEGMENT > 0, "too little room for outputs");
    if constexpr (V::Format::BLOCKS) static_assert(BLOCK_META_BYTES<typename V::Format> == V::block_meta, "the host knows other blocks");
    u32 live = s->live, tag = tag_of(0, in.writes_per_turn, in.writes);
    WarpTask<V> task = {slice_of<V>(s, 0, warp), live, nullptr, 0, 0, 0, 0, warp, lane};
    Multiplier<V, GROUPS> multiplier;
    multiplier.begin(task);
    for (u32 begin = 0; begin < share.rows; begin += SEGMENT, half ^= 1) {
        u32 here = min(SEGMENT, share.rows - begin), first = share.first + begin;
        float(*parts)[WARPS][OUTPUTS] = s->parts + half * STEP_ROWS;
        // A thread's results: for row at / here of the step and row at % here of the matrix.
        float before[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = tid + i * CONSUMERS;
            before[i] = 0.0f;
            if (at >= here * live) continue;
            if (V::output == Output::Add) before[i] = value(peek(exchange_of(a, at / here) + in.output + first + at % here));
            if (V::bias) before[i] += __ldg((const float *)in.vectors[1] + V::bias_at + first + at % here);
        }
        task.parts = parts[0][warp];
#pragma unroll 1
        for (task.chunk = 0; task.chunk < PASSES<V>; task.chunk++) {
            if constexpr (STAGES_CHUNKS<V>) stage_rows<V>(w, s, a, in, task.chunk, parity, warp, lane);
            if constexpr (V::chunks != 0) multiplier.load(task);
            for (task.done = 0; task.done < here; task.done += STEP) {
                task.here = min(STEP, here - task.done);
                task.slots = (task.here + V::rows - 1) / V::rows;
                ring.wait(w, task.slots);
                multiplier.multiply(ring, task);
                for (u32 i = 0; i < task.slots; i++) ring.release<V>(lane);
            }
        }
        consumers_meet();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = tid + i * CONSUMERS;
            if (at >= here * live) continue;
            u32 row = at / here, n = at % here;
            float v = result<V>(parts[row], n, norm_factor<V>(s->squares[parity * STEP_ROWS + row]), before[i]);
            if constexpr (V::output == Output::Logits) {
                a.logits[(u64)s->outputs[row] * V::n + first + n] = v;
            } else if (!is_stalled(a)) {
                publish(exchange_of(a, row) + in.output + first + n, v, tag);
            }
        }
    }
    w.product_end = (u32)clock64();
}

template <class V>
__device__ __forceinline__ void product_rows(WaitContext &w, Shared *s, Ring &ring, const RowsArgs &a, const Instruction &in, const Share &share, u32 &parity, u32 &half) {
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        if constexpr (!STAGES_CHUNKS<V>) stage_rows<V>(w, s, a, in, 0, parity, warp, lane);
    }
    constexpr bool SECOND = (V::Format::BLOCKS || V::chunks != 0) && STEP_ROWS > GROUP_ROWS;
    if (SECOND && s->live > GROUP_ROWS) multiply_rows<V, SECOND ? 2 : 1>(w, s, ring, a, in, share, parity, half);
    else multiply_rows<V, 1>(w, s, ring, a, in, share, parity, half);
}
