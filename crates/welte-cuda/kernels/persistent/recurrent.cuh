// Layers with a state: the gated delta rule and the state space model of Mamba-2 (gated_delta.cu, mamba2.cu), with the norm and the gate
// that follow. A job is a value head. Its state, a matrix of V::key_dim rows of V::value_dim, stays with one block: each element is
// read and written by one thread, the same in every turn. So program order is enough, and nothing of it passes through the exchange.
//
// PARTS threads share a column; each has every fourth element of it. They add in the order of the launched kernels. The state is
// requested before the turn's input arrives, and stored after the result was published.
#pragma once
#include "persistent/conv.cuh"

constexpr u32 STATE_PARTS = 4;
constexpr u32 STATE_COLUMNS = CONSUMERS / STATE_PARTS; // at once

// The operands of a head, in the scratchpad: query, key, value, the gate's values, then the delta rule's rate and both kinds' time.
template <class V> struct HeadOperands {
    static constexpr u32 QUERY = 0, KEY = V::key_dim, VALUE = 2 * V::key_dim, GATE = VALUE + V::value_dim, RATE = GATE + V::value_dim, TIME = RATE + 1, COUNT = TIME + 1;
    static constexpr u32 ROUNDS = (COUNT + CONSUMERS - 1) / CONSUMERS;
    static_assert(COUNT * 4 <= SCRATCHPAD_BYTES, "too little room for a head");

    // The place of an operand in the input.
    static __device__ __forceinline__ u32 place(u32 operand, u32 head) {
        u32 key_head = V::tiled ? head % V::key_heads : head / (V::heads / V::key_heads);
        if (operand < KEY) return V::query_at + key_head * V::key_dim + operand;
        if (operand < VALUE) return V::key_at + key_head * V::key_dim + operand - KEY;
        if (operand < GATE) return V::value_at + head * V::value_dim + operand - VALUE;
        if (operand < RATE) return V::gate_at + head * V::value_dim + operand - GATE;
        return (operand == RATE ? V::rate_at : V::time_at) + head;
    }
};

// A thread's part of a head's state.
template <class V> struct HeadState {
    static constexpr u32 EACH = (V::key_dim + STATE_PARTS - 1) / STATE_PARTS, COLUMNS = (V::value_dim + STATE_COLUMNS - 1) / STATE_COLUMNS;
    static_assert(EACH * COLUMNS <= 64, "too little room in registers");
    float v[COLUMNS][EACH];

    static __device__ __forceinline__ u32 row(u32 i, u32 part) { return i * STATE_PARTS + part; }
    static __device__ __forceinline__ bool has(u32 i, u32 part) { return V::key_dim % STATE_PARTS == 0 || row(i, part) < V::key_dim; }
    static __device__ __forceinline__ bool has_column(u32 column) { return V::value_dim % STATE_COLUMNS == 0 || column < V::value_dim; }

    // The distance of an element from the thread's first one. A constant, so that addresses take no registers.
    static __device__ __forceinline__ constexpr u64 distance(u32 c, u32 i) { return (u64)i * (STATE_PARTS * V::value_dim) + c * STATE_COLUMNS; }

    // `from` is the thread's first element. Before position 0 a state is zero, even if the page holds other numbers.
    __device__ __forceinline__ void load(const float *from, bool zero, u32 part, u32 first) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++)
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                v[c][i] = 0.0f;
                if (!zero && has(i, part) && has_column(first + c * STATE_COLUMNS)) v[c][i] = from[distance(c, i)];
            }
    }

    __device__ __forceinline__ void store(float *to, u32 part, u32 first) const {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++)
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (has(i, part) && has_column(first + c * STATE_COLUMNS)) to[distance(c, i)] = v[c][i];
    }
};

// What all columns of a head have in common.
struct HeadFactors {
    float key, query; // the factors that normalise both
    float kept, rate; // of the old state, and of the change
};

template <class V> __device__ __forceinline__ float sum_of_squares(const float *vector, u32 lane) {
    float sum = 0.0f;
    for (u32 i = lane; i < V::key_dim; i += 32) sum = fmaf(vector[i], vector[i], sum);
    return warp_sum(sum);
}

// Every warp computes them for itself.
template <class V> __device__ __forceinline__ HeadFactors head_factors(const float *operands, const Instruction &in, u32 head, u32 lane) {
    using O = HeadOperands<V>;
    float time = softplus(operands[O::TIME] + __ldg((const float *)in.vectors[0] + head)), kept = expf(__ldg((const float *)in.weight + head) * time);
    if constexpr (V::mamba) return {1.0f, 1.0f, kept, time};
    float keys = sum_of_squares<V>(operands + O::KEY, lane), queries = sum_of_squares<V>(operands + O::QUERY, lane);
    float query = 1.0f / (sqrtf(queries + V::eps) * sqrtf((float)V::key_dim)), key = 1.0f / sqrtf(keys + V::eps);
    return {key, query, kept, 1.0f / (1.0f + expf(-operands[O::RATE]))};
}

// Changes a thread's part of a column by this turn's key and value. Returns the column's result, the same in all threads that share it.
template <class V> __device__ __forceinline__ float next_state(float (&s)[HeadState<V>::EACH], const float *operands, const HeadFactors &f, float value_of, u32 part) {
    using O = HeadOperands<V>;
    using S = HeadState<V>;
    const float *keys = operands + O::KEY, *queries = operands + O::QUERY;
    float change = f.rate * value_of, answer = 0.0f;
    if constexpr (!V::mamba) {
        float recalled = 0.0f;
#pragma unroll
        for (u32 i = 0; i < S::EACH; i++) {
            s[i] *= f.kept;
            if (S::has(i, part)) recalled = fmaf(s[i], keys[S::row(i, part)] * f.key, recalled);
        }
        change = f.rate * (value_of - column_sum(recalled));
    }
#pragma unroll
    for (u32 i = 0; i < S::EACH; i++) {
        if (!S::has(i, part)) continue;
        float key = keys[S::row(i, part)];
        s[i] = V::mamba ? fmaf(s[i], f.kept, key * change) : fmaf(key * f.key, change, s[i]);
        answer = fmaf(s[i], queries[S::row(i, part)] * f.query, answer);
    }
    return column_sum(answer);
}

// `in` has the decay and the bias of the time, per head, and the norm's weights (delta rule) or the skipped part per head (Mamba-2).
template <class V>
__device__ __forceinline__ void recurrent(WaitContext &w, Shared *s, float *exchange, const Instruction &in, const Sequence &sequence, u32 turn, u32 parity, bool stalled) {
    using O = HeadOperands<V>;
    using S = HeadState<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, part = tid % STATE_PARTS, first = tid / STATE_PARTS;
    u32 tag = tag_of(turn, in.reads_per_turn, in.reads), written = tag_of(turn, in.writes_per_turn, in.writes);
    const Kv &cache = sequence.caches[V::cache];
    const float *x = exchange + in.input, *per_value = (const float *)in.vectors[1];
    float *operands = (float *)s->scratchpad;
    STAMP(0);
    if (tid == 0) s->signals.awaiting = AWAITS_ATTENTION;
#pragma unroll 1
    for (u32 head = opaque(blockIdx.x); head < V::heads; head += gridDim.x) {
        float *at = (float *)cache.start + (((u64)in.layer * cache.total + state_page(s, V::cache)) * V::heads + head) * (V::key_dim * V::value_dim) + part * V::value_dim + first;
        S state;
        state.load(at, sequence.position == 0, part, first);
        u32 got[O::ROUNDS];
#pragma unroll
        for (u32 r = 0; r < O::ROUNDS; r++) got[r] = tid + CONSUMERS * r < O::COUNT ? peek(x + O::place(tid + CONSUMERS * r, head)) : 0;
#pragma unroll
        for (u32 r = 0; r < O::ROUNDS; r++) {
            u32 operand = tid + CONSUMERS * r;
            if (operand < O::COUNT) operands[operand] = await_value(w, x + O::place(operand, head), got[r], tag);
        }
        consumers_meet();
        STAMP(1);
        HeadFactors factors = head_factors<V>(operands, in, head, lane);
        float y[S::COLUMNS], gates[S::COLUMNS], squares = 0.0f;
#pragma unroll
        for (u32 c = 0; c < S::COLUMNS; c++) {
            u32 column = first + c * STATE_COLUMNS;
            float value_of = S::has_column(column) ? operands[O::VALUE + column] : 0.0f;
            gates[c] = S::has_column(column) ? operands[O::GATE + column] : 0.0f;
            y[c] = next_state<V>(state.v[c], operands, factors, value_of, part);
            if constexpr (V::mamba) y[c] = fmaf(__ldg(per_value + head), value_of, y[c]);
            if (part == 0 && S::has_column(column)) squares = fmaf(y[c], y[c], squares);
        }
        if constexpr (V::norm) {
            squares = warp_sum(squares);
            if (lane == 0) s->squares[parity][tid / 32] = squares;
        }
        // After this barrier no warp reads the operands.
        consumers_meet();
        STAMP(2);
        float factor = 1.0f;
        if constexpr (V::norm) {
            float all = 0.0f;
#pragma unroll
            for (u32 i = 0; i < WARPS; i++) all += s->squares[parity][i];
            factor = rsqrtf(all * (1.0f / (float)V::value_dim) + V::norm_eps);
        }
#pragma unroll
        for (u32 c = 0; c < S::COLUMNS; c++) {
            u32 column = first + c * STATE_COLUMNS;
            if (part != 0 || !S::has_column(column)) continue;
            float v = y[c] * factor;
            if constexpr (V::norm) v *= __ldg(per_value + column);
            if (!stalled) publish(exchange + in.output + head * V::value_dim + column, v * activate(0, gates[c]), written);
        }
        state.store(at, part, first);
        __syncwarp();
    }
    STAMP(3);
}
