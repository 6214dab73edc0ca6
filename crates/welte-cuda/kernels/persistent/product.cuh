// Products of a matrix with one vector: rows come out of the ring, each warp multiplies its slice of all of them
// (persistent/part.cuh), and when all have, a thread per row adds the slices' parts up and hands the result on.
#pragma once
#include "persistent/stage.cuh"

// Which unit of the row a lane takes in each round; where its slice has no more, what lies beside it in the row (so in other banks
// than what other lanes read), to be multiplied by nought.
template <class V> struct Units {
    using P = Part<V>;
    static constexpr bool FULL = P::EVEN && P::EACH % P::LANES == 0;
    u32 at[P::ROUNDS];
    bool live[P::ROUNDS];
    u32 first; // of the slice

    __device__ __forceinline__ void begin(u32 warp, u32 lane) {
        // Where lines would be read from the same banks each begins a round after the one before: so with four lanes per line or two, and
        // with any where lines of scales are as many bytes apart as there are in all banks.
        constexpr bool TURNED = P::ROUNDS > 1 && (P::LANES <= 4 || Slot<V>::stride(Slot<V>::F::PLANES - 1) % 128 == 0);
        u32 ahead = TURNED ? lane / P::LANES % P::ROUNDS : 0, units = P::units(warp);
        first = warp * P::EACH;
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 round = r + ahead < P::ROUNDS ? r + ahead : r + ahead - P::ROUNDS, unit = lane % P::LANES + round * P::LANES;
            live[r] = FULL || unit < units;
            at[r] = opaque(FULL ? first + unit : min(first + unit, P::UNITS - 1));
        }
    }

    // Where in the slice; where there is none, anywhere.
    __device__ __forceinline__ u32 in_slice(u32 r) const { return live[r] ? at[r] - first : 0; }
};

// What a lane multiplies with.
template <class V, bool BLOCKS> struct Held;

template <class V> struct Held<V, true> {
    using P = Part<V>;
    using F = typename V::Format;
    int q[P::ROUNDS][8];
    float scale[P::ROUNDS], low[P::ROUNDS], high[P::ROUNDS];

    __device__ __forceinline__ void load(const u8 *slice, const Units<V> &units) {
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 at = units.in_slice(r);
            int4 a = *(const int4 *)(slice + at * 16), b = *(const int4 *)(slice + (P::EACH + at) * 16);
            float4 side = *(const float4 *)(slice + (2 * P::EACH + at) * 16);
            if (!units.live[r]) side = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            q[r][0] = a.x, q[r][1] = a.y, q[r][2] = a.z, q[r][3] = a.w;
            q[r][4] = b.x, q[r][5] = b.y, q[r][6] = b.z, q[r][7] = b.w;
            scale[r] = F::NIBBLES ? side.x * (1.0f / 16.0f) : side.x;
            low[r] = F::HALVES ? side.y : F::CENTRE ? (float)-F::CENTRE * (side.y + side.z) : side.y + side.z;
            high[r] = side.z;
        }
    }

    // A unit as it comes out of the ring; `w` has its scales, and its integers unless they are nibbles.
    struct Unit {
        uint4 nibbles;
        Block32 w;
    };
    __device__ static __forceinline__ Unit take(const u8 *const p[], u32 unit) { return {F::NIBBLES ? *(const uint4 *)(p[0] + 16 * unit) : uint4(), F::load(p, unit)}; }

    __device__ __forceinline__ float add(const Unit &unit, u32 r, float sum) const {
        const Block32 &w = unit.w;
        if constexpr (F::HALVES) {
            int a = 0, b = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a = __dp4a((int)w.q[j], q[r][j], a);
                b = __dp4a((int)w.q[j + 4], q[r][j + 4], b);
            }
            sum = fmaf(scale[r], fmaf(w.d[0], (float)a, w.d[1] * (float)b), sum);
            return fmaf(w.m[0], low[r], fmaf(w.m[1], high[r], sum));
        }
        int dot = 0;
        if constexpr (F::NIBBLES) {
            // The upper nibbles stay where they are, times 16; so `scale` has a sixteenth.
            u32 words[4] = {unit.nibbles.x, unit.nibbles.y, unit.nibbles.z, unit.nibbles.w};
            int upper = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dot = __dp4a((int)(words[j] & 0x0f0f0f0fu), q[r][j], dot);
                upper = dot_unsigned(words[j] & 0xf0f0f0f0u, q[r][j + 4], upper);
            }
            dot = dot * 16 + upper;
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) dot = __dp4a((int)w.q[j], q[r][j], dot);
        }
        if constexpr (F::CENTRE != 0) return fmaf(w.d[0], fmaf(scale[r], (float)dot, low[r]), sum);
        sum = fmaf(w.d[0], scale[r] * (float)dot, sum);
        return F::OFFSET ? fmaf(w.m[0], low[r], sum) : sum;
    }
};

template <class V> struct Held<V, false> {
    using P = Part<V>;
    using F = typename V::Format;
    float x[P::ROUNDS][8];

    __device__ __forceinline__ void load(const u8 *slice, const Units<V> &units) {
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 at = units.in_slice(r);
            float4 a = *(const float4 *)(slice + at * 16), b = *(const float4 *)(slice + (P::EACH + at) * 16);
            if (!units.live[r]) a = b = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            x[r][0] = a.x, x[r][1] = a.y, x[r][2] = a.z, x[r][3] = a.w;
            x[r][4] = b.x, x[r][5] = b.y, x[r][6] = b.z, x[r][7] = b.w;
        }
    }

    struct Unit {
        float w[8];
    };
    __device__ static __forceinline__ Unit take(const u8 *const p[], u32 unit) {
        Unit taken;
        F::load8(p, unit, taken.w);
        return taken;
    }

    __device__ __forceinline__ float add(const Unit &unit, u32 r, float sum) const {
        float other = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            sum = fmaf(unit.w[e], x[r][e], sum);
            other = fmaf(unit.w[e + 1], x[r][e + 1], other);
        }
        return sum + other;
    }
};

// Sums of M passes over the LANES lanes that share a row: lane i of them has that of pass i % M.
template <u32 M, u32 LANES> __device__ __forceinline__ float fold(float (&v)[M], u32 lane) {
#pragma unroll
    for (u32 left = M, o = 1; left > 1; left /= 2, o *= 2) {
        bool second = lane & o;
#pragma unroll
        for (u32 i = 0; i < left / 2; i++) {
            float keeps = second ? v[2 * i + 1] : v[2 * i], gives = second ? v[2 * i] : v[2 * i + 1];
            v[i] = keeps + __shfl_xor_sync(~0u, gives, o);
        }
    }
    float sum = v[0];
#pragma unroll
    for (u32 o = M; o < LANES; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
    return sum;
}

// This warp's parts of the `here` rows of a slot, into `parts` from row `done` on.
template <class V>
__device__ __forceinline__ void rows_of(const Held<V, V::Format::BLOCKS> &x, const Units<V> &units, const u8 *slot, float *parts, u32 done, u32 here, u32 lane) {
    using L = Slot<V>;
    using P = Part<V>;
    constexpr u32 M = P::AT_ONCE;
#pragma unroll 1
    for (u32 base = 0; base < P::LINES; base += M * P::ROWS) {
        if (L::SETS == 1 && base >= here) break;
        float v[M];
        // All of it is asked for before any of it is multiplied.
        typename Held<V, V::Format::BLOCKS>::Unit taken[M][P::ROUNDS];
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            u32 line = base + m * P::ROWS + lane / P::LANES;
            if (P::LINES % P::ROWS) line = min(line, P::LINES - 1);
            const u8 *p[MOST_PLANES];
#pragma unroll
            for (int i = 0; i < L::F::PLANES; i++) p[i] = slot + P::LINES * L::before(i) + line * L::stride(i);
#pragma unroll
            for (u32 r = 0; r < P::ROUNDS; r++) taken[m][r] = x.take(p, units.at[r]);
        }
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            v[m] = 0.0f;
#pragma unroll
            for (u32 r = 0; r < P::ROUNDS; r++) v[m] = x.add(taken[m][r], r, v[m]);
        }
        float sum = fold<M, P::LANES>(v, lane);
        u32 line = base + lane % M * P::ROWS + lane / P::LANES, set = line / V::rows, row = line % V::rows;
        if (lane % P::LANES < M && row < here && line < P::LINES) parts[set * OUTPUTS / L::SETS + done + row] = sum;
    }
}

// What all slices have of a row.
__device__ __forceinline__ float total(const float (*parts)[OUTPUTS], u32 row) {
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum[i % 2] += parts[i][row];
    return sum[0] + sum[1];
}

// What a norm has for all results of a row: `squares` are the slices' sums of squares.
template <class V> __device__ __forceinline__ float norm_factor(const float (&squares)[WARPS]) {
    if constexpr (!V::norm) return 1.0f;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += squares[i];
    return rsqrtf(sum * (1.0f / (float)V::k) + V::eps);
}

// What a product comes to in a row. `before`: what it is added to.
template <class V> __device__ __forceinline__ float result(const float (*parts)[OUTPUTS], u32 row, float factor, float before) {
    float v = total(parts, row) * factor;
    if constexpr (V::output == ACT_MUL) v = activate(V::act, v) * (total(parts, OUTPUTS / 2 + row) * factor);
    if constexpr (V::output == ADD || V::bias) v += before;
    if constexpr (V::output == LOGITS) {
        v *= V::scale;
        if constexpr (V::cap != 0.0f) v = V::cap * tanhf(v / V::cap);
    }
    return v;
}

// A product, its input from the exchange, its output to the exchange or (logits) to plain memory. Gives back the largest
// logit that this thread has seen.
template <class V>
__device__ __forceinline__ u64 product(Watch &w, Shared *s, Ring &ring, float *exchange, float *logits, const Instruction &in, const Share &share,
                                       u32 turn, u32 &parity, u32 &half, bool mute) {
    using L = Slot<V>;
    using P = Part<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    u8 *slice = s->work + warp * P::BYTES;
    STAMP(0);
    // What does not depend on the input is worked out before it is there: for what comes after that every block waits.
    Units<V> units;
    units.begin(warp, lane);
    u32 first = opaque(share.first), count = opaque(share.rows), tag = opaque(tag_of(turn, in.writes_per_turn, in.writes));
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        stage<V>(w, in, exchange + in.in, tag_of(turn, in.reads_per_turn, in.reads), slice, warp, lane, &s->squares[parity][warp]);
    }
    STAMP(1);
    Held<V, V::Format::BLOCKS> x;
    x.load(slice, units);
    // Two halves of the parts' room take turns: a segment need not wait until the one before is read.
    constexpr u32 ROOM = OUTPUTS / L::SETS, MOST = ROOM < CONSUMERS ? ROOM : CONSUMERS, SEGMENT = MOST / V::rows * V::rows;
    static_assert(SEGMENT > 0, "too little room for outputs");
    float *out = exchange + in.out + first;
    u64 best = 0;
    float factor = 1.0f;
    for (u32 begin = 0; begin < count; begin += SEGMENT, half ^= 1) {
        u32 rows = min(SEGMENT, count - begin);
        float(*parts)[OUTPUTS] = s->parts[half];
        float before = 0.0f;
        if (V::output == ADD && tid < rows) before = value(glance(out + begin + tid));
        if (V::bias && tid < rows) before = __ldg((const float *)in.vectors[1] + V::bias_at + first + begin + tid);
        for (u32 done = 0; done < rows; done += V::rows) {
            // Where it will be is worked out before it is there.
            const u8 *slot = ring.slot<V>();
            ring.take(w);
            rows_of<V>(x, units, slot, parts[warp], done, min((u32)V::rows, rows - done), lane);
            ring.give<V>(lane);
        }
        consumers_meet();
        STAMP(2);
        if (begin == 0) factor = norm_factor<V>(s->squares[parity]);
        if (tid >= rows) continue;
        float v = result<V>(parts, tid, factor, before);
        if constexpr (V::output == LOGITS) {
            u32 id = first + begin + tid;
            logits[id] = v;
            u64 rank = v == v ? ranked(v, id) : 0;
            best = rank > best ? rank : best;
        } else if (!mute) {
            publish(out + begin + tid, v, tag);
        }
    }
    STAMP(3);
    w.since = (u32)clock64();
    return best;
}
