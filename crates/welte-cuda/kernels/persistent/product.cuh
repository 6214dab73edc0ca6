// Products of a matrix with one vector. Rows arrive in the ring, and each warp multiplies its slice of all of them (partition.cuh).
// Then a thread per row adds the slices' sums and publishes the result.
#pragma once
#include "persistent/conv.cuh"
#include "persistent/stage.cuh"

// The unit of the row that a lane takes in each round. Past the end of its slice a lane takes the neighbouring unit and multiplies it
// by zero. That unit is in other banks than the units of the other lanes.
template <class V> struct LaneUnits {
    using P = Partition<V>;
    static constexpr bool FULL = P::EVEN && P::EACH % P::LANES == 0;
    // Neighbouring lines start in different rounds where they would otherwise read from the same banks. That is so with two or four
    // lanes per line, and with any number where the distance of two lines' scales is a multiple of all banks.
    static constexpr bool ALIGNED = Slot<V>::stride(Slot<V>::F::PLANES - 1) % 128 == 0, TURNED = P::ROUNDS > 1 && (P::LANES <= 4 || ALIGNED);
    // The number of different starts. With blocks each further start costs instructions (LaneInput), so they are few.
    static constexpr u32 MOST_STARTS = !P::F::BLOCKS ? P::ROUNDS : ALIGNED ? 4 : 2, STARTS = !TURNED ? 1 : P::ROUNDS < MOST_STARTS ? P::ROUNDS : MOST_STARTS;
    u32 at[P::ROUNDS];
    bool live[P::ROUNDS];
    u32 first; // unit of the slice
    u32 ahead; // rounds that this lane's lines start later

    __device__ __forceinline__ void begin(u32 warp, u32 lane) {
        u32 units = P::units(warp);
        ahead = lane / P::LANES % STARTS;
        first = warp * P::EACH;
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 round = r + ahead < P::ROUNDS ? r + ahead : r + ahead - P::ROUNDS, unit = lane % P::LANES + round * P::LANES;
            live[r] = FULL || unit < units;
            at[r] = opaque(FULL ? first + unit : min(first + unit, P::UNITS - 1));
        }
    }

    // The index within the slice; any index where the unit is past its end.
    __device__ __forceinline__ u32 in_slice(u32 r) const { return live[r] ? at[r] - first : 0; }
};

// A lane's share of the input, in registers.
template <class V, bool BLOCKS> struct LaneInput;

// Blocks. A sum does not depend on where its line starts: a line that starts later loads its first units last, but adds them first.
// For this the last EARLY rounds are added twice, once before the others and once in their turn, and with zeros in one of the two cases.
// Steps of several rows add in the same order (tile.cuh).
template <class V> struct LaneInput<V, true> {
    using P = Partition<V>;
    using F = typename V::Format;
    static constexpr u32 EARLY = LaneUnits<V>::STARTS - 1, FIRST_EARLY = P::ROUNDS - EARLY;

    // A block's scale, and what its offsets are multiplied by.
    struct Meta {
        float scale, low, high;
    };
    int q[P::ROUNDS][8];
    Meta meta[P::ROUNDS], early[EARLY ? EARLY : 1];

    __device__ __forceinline__ void load(const u8 *slice, const LaneUnits<V> &units) {
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 at = units.in_slice(r);
            int4 a = *(const int4 *)(slice + at * 16), b = *(const int4 *)(slice + (P::EACH + at) * 16);
            float4 side = *(const float4 *)(slice + (2 * P::EACH + at) * 16);
            if (!units.live[r]) side = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            q[r][0] = a.x, q[r][1] = a.y, q[r][2] = a.z, q[r][3] = a.w;
            q[r][4] = b.x, q[r][5] = b.y, q[r][6] = b.z, q[r][7] = b.w;
            meta[r].scale = F::NIBBLES ? side.x * (1.0f / 16.0f) : side.x;
            meta[r].low = F::HALVES ? side.y : F::CENTRE ? (float)-F::CENTRE * (side.y + side.z) : side.y + side.z;
            meta[r].high = side.z;
            if (r < FIRST_EARLY) continue;
            const Meta none = {0.0f, 0.0f, 0.0f};
            bool is_first = r + units.ahead >= P::ROUNDS;
            early[r - FIRST_EARLY] = is_first ? meta[r] : none;
            if (is_first) meta[r] = none;
        }
    }

    // A unit as it is in the ring. `w` has the scales, and the integers unless these are nibbles.
    struct Unit {
        uint4 nibbles;
        Block32 w;
    };
    __device__ static __forceinline__ Unit load_unit(const u8 *const p[], u32 unit) { return {F::NIBBLES ? *(const uint4 *)(p[0] + 16 * unit) : uint4(), F::load(p, unit)}; }

    // The sum of a block's integer products; with HALVES those of its halves.
    struct Dot {
        int all, high;
    };
    __device__ __forceinline__ Dot dot(const Unit &unit, u32 r) const {
        const Block32 &w = unit.w;
        int a = 0, b = 0;
        if constexpr (F::HALVES) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a = __dp4a((int)w.q[j], q[r][j], a);
                b = __dp4a((int)w.q[j + 4], q[r][j + 4], b);
            }
        } else if constexpr (F::NIBBLES) {
            // The upper nibbles keep their place, so they count 16 times; `scale` makes up for it.
            u32 words[4] = {unit.nibbles.x, unit.nibbles.y, unit.nibbles.z, unit.nibbles.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a = __dp4a((int)(words[j] & 0x0f0f0f0fu), q[r][j], a);
                b = dot_unsigned(words[j] & 0xf0f0f0f0u, q[r][j + 4], b);
            }
            a = a * 16 + b;
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) a = __dp4a((int)w.q[j], q[r][j], a);
        }
        return {a, b};
    }

    __device__ static __forceinline__ float add(const Block32 &w, Dot dot, const Meta &x, float sum) {
        if constexpr (F::HALVES) {
            sum = fmaf(x.scale, fmaf(w.d[0], (float)dot.all, w.d[1] * (float)dot.high), sum);
            return fmaf(w.m[0], x.low, fmaf(w.m[1], x.high, sum));
        }
        if constexpr (F::CENTRE != 0) return fmaf(w.d[0], fmaf(x.scale, (float)dot.all, x.low), sum);
        sum = fmaf(w.d[0], x.scale * (float)dot.all, sum);
        return F::OFFSET ? fmaf(w.m[0], x.low, sum) : sum;
    }

    // The products of a line's units.
    __device__ __forceinline__ float multiply(const Unit (&taken)[P::ROUNDS]) const {
        float sum = 0.0f;
        Dot dots[EARLY ? EARLY : 1];
#pragma unroll
        for (u32 r = FIRST_EARLY; r < P::ROUNDS; r++) {
            u32 e = r - FIRST_EARLY;
            dots[e] = dot(taken[r], r);
            sum = add(taken[r].w, dots[e], early[e], sum);
        }
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) sum = add(taken[r].w, r < FIRST_EARLY ? dot(taken[r], r) : dots[r < FIRST_EARLY ? 0 : r - FIRST_EARLY], meta[r], sum);
        return sum;
    }
};

// Floats. Where a line starts decides the order of its sum, so steps of several rows place lines in the ring as chains do.
template <class V> struct LaneInput<V, false> {
    using P = Partition<V>;
    using F = typename V::Format;
    float x[P::ROUNDS][8];

    __device__ __forceinline__ void load(const u8 *slice, const LaneUnits<V> &units) {
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
    __device__ static __forceinline__ Unit load_unit(const u8 *const p[], u32 unit) {
        Unit taken;
        F::load8(p, unit, taken.w);
        return taken;
    }

    __device__ __forceinline__ float multiply(const Unit (&taken)[P::ROUNDS]) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            float other = 0.0f;
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                sum = fmaf(taken[r].w[e], x[r][e], sum);
                other = fmaf(taken[r].w[e + 1], x[r][e + 1], other);
            }
            sum += other;
        }
        return sum;
    }
};

// Adds M sums over the LANES lanes that share a row. Lane i of them returns sum i % M.
template <u32 M, u32 LANES> __device__ __forceinline__ float sum_over_lanes(float (&v)[M], u32 lane) {
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

// Passes this warp's sums for the `here` rows of a slot to `put`, with their places among the parts, from row `done` on.
template <class V, class Put>
__device__ __forceinline__ void multiply_slot(const LaneInput<V, V::Format::BLOCKS> &x, const LaneUnits<V> &units, const u8 *slot, u32 done, u32 here, u32 lane, Put put) {
    using L = Slot<V>;
    using P = Partition<V>;
    constexpr u32 M = P::AT_ONCE;
#pragma unroll 1
    for (u32 base = 0; base < P::LINES; base += M * P::ROWS) {
        if (L::SETS == 1 && base >= here) break;
        float v[M];
        // All units are loaded before any of them is multiplied.
        typename LaneInput<V, V::Format::BLOCKS>::Unit taken[M][P::ROUNDS];
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            u32 line = base + m * P::ROWS + lane / P::LANES;
            if (P::LINES % P::ROWS) line = min(line, P::LINES - 1);
            const u8 *p[MOST_PLANES];
#pragma unroll
            for (int i = 0; i < L::F::PLANES; i++) p[i] = slot + P::LINES * L::before(i) + line * L::stride(i);
#pragma unroll
            for (u32 r = 0; r < P::ROUNDS; r++) taken[m][r] = x.load_unit(p, units.at[r]);
        }
#pragma unroll
        for (u32 m = 0; m < M; m++) v[m] = x.multiply(taken[m]);
        float sum = sum_over_lanes<M, P::LANES>(v, lane);
        u32 line = base + lane % M * P::ROWS + lane / P::LANES, set = line / V::rows, row = line % V::rows;
        if (lane % P::LANES < M && row < here && line < P::LINES) put(set * OUTPUTS / L::SETS + done + row, sum);
    }
}

// Multiplies by lanes: block formats, F16 and F32.
template <class V> struct LaneMultiplier {
    LaneUnits<V> units;
    LaneInput<V, V::Format::BLOCKS> x;

    __device__ __forceinline__ void begin(u32 warp, u32 lane) { units.begin(warp, lane); }
    __device__ __forceinline__ void load(const u8 *slice, u32) { x.load(slice, units); }
    __device__ __forceinline__ void multiply(const u8 *slot, float *parts, u32 done, u32 here, u32 lane) const {
        multiply_slot<V>(x, units, slot, done, here, lane, [=](u32 at, float sum) { parts[at] = sum; });
    }
};

// The sum of all slices for a row.
__device__ __forceinline__ float sum_slices(const float (*parts)[OUTPUTS], u32 row) {
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum[i % 2] += parts[i][row];
    return sum[0] + sum[1];
}

// The factor by which a norm scales all results of a row. `squares` are the slices' sums of squares.
template <class V> __device__ __forceinline__ float norm_factor(const float (&squares)[WARPS]) {
    if constexpr (!V::norm || V::grouped) return 1.0f;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += squares[i];
    return rsqrtf(sum * (1.0f / (float)V::k) + V::eps);
}

// The final result of a row. `before` is the value that it is added to, with the bias.
template <class V> __device__ __forceinline__ float result(const float (*parts)[OUTPUTS], u32 row, float factor, float before) {
    float v = sum_slices(parts, row) * factor;
    if constexpr (V::output == Output::ActMul) v = gated(V::act, v, sum_slices(parts, OUTPUTS / 2 + row) * factor);
    if constexpr (V::output == Output::Add || V::output == Output::Hold || V::bias) v += before;
    if constexpr (V::output == Output::Act) v = activate(V::act, v);
    if constexpr (V::output == Output::Logits) {
        v *= V::scale;
        if constexpr (V::cap != 0.0f) v = V::cap * tanhf(v / V::cap);
    }
    return v;
}

// The convolution of a row that is a channel. `in` is the instruction after the product's.
template <class V, bool = V::taps != 0> struct RowConvolution {
    __device__ __forceinline__ void load(const Shared *, const Sequence &, const Instruction &, u32) {}
    __device__ __forceinline__ float next(float own) { return own; }
};

template <class V> struct RowConvolution<V, true> {
    Channel<V> channel;
    bool is_channel;

    __device__ __forceinline__ void load(const Shared *s, const Sequence &sequence, const Instruction &in, u32 row) {
        // Before the first channel the difference is large.
        u32 c = row - V::conv_begin;
        is_channel = c < V::conv_n;
        if (is_channel) channel.load(s, sequence, in, c);
    }
    __device__ __forceinline__ float next(float own) { return is_channel ? channel.next(own) : own; }
};

// A whole product; `Multiplier` is LaneMultiplier or TensorMultiplier. The input comes from the exchange; the output goes to the exchange, or, if it is logits, to plain memory. Returns
// the largest logit that this thread has seen.
template <class V, class Multiplier>
__device__ __forceinline__ u64 product(WaitContext &w, Shared *s, Ring &ring, float *exchange, float *logits, const Instruction &in, const Share &share,
                                       const Sequence &sequence, u32 turn, u32 &parity, u32 &half, bool stalled) {
    using L = Slot<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    u8 *slice = s->scratchpad + warp * Staging<V>::BYTES;
    // A router has fewer rows than there are blocks.
    if (V::partial && share.rows == 0) return 0;
    STAMP(0);
    // Work that does not need the input comes before the wait for it, because every block waits for the results.
    Multiplier x;
    x.begin(warp, lane);
    u32 first = opaque(share.first), count = opaque(share.rows), tag = opaque(tag_of(turn, in.writes_per_turn, in.writes));
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        stage<V>(w, in, exchange + in.input, tag_of(turn, in.reads_per_turn, in.reads), slice, warp, lane, &s->squares[parity][warp]);
    }
    STAMP(1);
    x.load(slice, lane);
    // The parts have two halves that are used in turn, so a segment need not wait until the previous one is read.
    constexpr u32 SEGMENT = L::ROOM / V::rows * V::rows;
    static_assert(SEGMENT > 0, "too little room for outputs");
    float *out = exchange + in.output + first;
    // The next instruction supplies the place of the gate or of the inputs, or the weights of the convolution.
    const Instruction &more = (&in)[1];
    u32 gate = 0, gate_tag = 0;
    if constexpr (V::gated) gate_tag = tag_of(turn, more.reads_per_turn, more.reads), gate = peek(exchange + more.input);
    const float *inputs = exchange + more.input + first;
    u64 best = 0;
    float factor = 1.0f;
    for (u32 begin = 0; begin < count; begin += SEGMENT, half ^= 1) {
        u32 rows = min(SEGMENT, count - begin);
        float(*parts)[OUTPUTS] = s->parts[half];
        float before = 0.0f;
        u32 sum = 0;
        if (V::output == Output::Add && tid < rows) sum = peek(out + begin + tid);
        if (V::gates_inputs && tid < rows) sum = peek(inputs + begin + tid);
        if (V::bias && tid < rows) before += __ldg((const float *)in.vectors[1] + V::bias_at + first + begin + tid);
        RowConvolution<V> convolution;
        if (tid < rows) convolution.load(s, sequence, more, first + begin + tid);
        for (u32 done = 0; done < rows; done += V::rows) {
            // The slot's address does not depend on its arrival.
            const u8 *slot = ring.slot<V>();
            ring.wait(w);
            x.multiply(slot, parts[warp], done, min((u32)V::rows, rows - done), lane);
            ring.release<V>(lane);
        }
        consumers_meet();
        STAMP(2);
        if (begin == 0) factor = norm_factor<V>(s->squares[parity]);
        if constexpr (V::gated)
            if (begin == 0) factor *= sigmoid(await_value(w, exchange + more.input, gate, gate_tag));
        if (tid >= rows) continue;
#if HELD
        if constexpr (V::column != 0) before += s->held[begin + tid];
        if constexpr (V::output == Output::Hold) {
            s->held[begin + tid] = result<V>(parts, tid, factor, before);
            continue;
        }
#endif
        if constexpr (V::output == Output::Add) before += V::follows ? await_value(w, out + begin + tid, sum, tag_of(turn, in.writes_per_turn, in.writes - 1u)) : value(sum);
        float v = convolution.next(result<V>(parts, tid, factor, before));
        if constexpr (V::gates_inputs) v = gated(V::act, v, await_value(w, inputs + begin + tid, sum, tag_of(turn, more.reads_per_turn, more.reads)));
        if constexpr (V::output == Output::Logits) {
            u32 id = V::first_id + first + begin + tid;
            logits[id] = v;
#if RANKS > 1
            if (V::exchanged && s->sends_logits)
#pragma unroll
                for (u32 r = 0; r < RANKS - 1; r++) store_relaxed_system(elsewhere(logits + id, s->logits_away[r]), __float_as_uint(v));
#endif
            u64 rank = v == v ? ranked(v, id) : 0;
            best = rank > best ? rank : best;
        } else if (!stalled) {
            publish_to<V::exchanged>(s, out + begin + tid, v, tag);
        }
    }
    STAMP(3);
    w.product_end = (u32)clock64();
    return best;
}
