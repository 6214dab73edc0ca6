// Products of a matrix with one vector: the input is staged in shared memory by all consumers, each lane keeps the elements
// that it multiplies in registers, and rows come out of the ring. V::split warps share a row.
//
// Activations of block formats are rounded to int8 per 32 as the graph's kernels do it (quantise.cuh).
#pragma once
#include "persistent/stream.cuh"

// How the elements of a row are shared out.
template <class V> struct Part {
    using F = typename V::Format;
    static constexpr u32 UNIT = F::BLOCKS ? 32 : 8;          // neighbouring elements that a lane takes
    static constexpr u32 UNITS = V::k / UNIT;
    static constexpr u32 EACH = (UNITS + V::split - 1) / V::split; // a warp's
    static constexpr u32 ROUNDS = (EACH + 31) / 32;
    static constexpr u32 GROUPS = WARPS / V::split;          // rows in work at a time
    static_assert(V::k % UNIT == 0, "rows are whole units");
};

// Where a staged input lies: pieces of 16 bytes, so that neighbouring lanes read neighbouring pieces.
// Blocks: bytes 0..16 of all blocks, bytes 16..32, then scale and sums of both halves. Floats: as pieces of 4, even and odd.
template <class V> __device__ __forceinline__ void put8(u8 *work, u32 eighth, bool live, const float (&v)[8]) {
    constexpr u32 UNITS = Part<V>::UNITS;
    if constexpr (!Part<V>::F::BLOCKS) {
        if (!live) return;
        *(float4 *)(work + eighth * 16) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(work + (UNITS + eighth) * 16) = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) most = max_nan(most, fabsf(v[i]));
        most = max_nan(most, __shfl_xor_sync(~0u, most, 1));
        most = max_nan(most, __shfl_xor_sync(~0u, most, 2));
        // NaN is not below TINY: it makes the scale, and so every output of the row, NaN. So does infinity, times nought.
        float scale = most <= TINY ? 0.0f : most * (1.0f / 127.0f), inverse = most <= TINY ? 0.0f : __fdividef(127.0f, most);
        u32 q[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // 1.5 * 2^23: the sum's last byte is the rounded integer.
            u32 b[4];
#pragma unroll
            for (int j = 0; j < 4; j++) b[j] = __float_as_uint(fmaf(v[4 * i + j], inverse, 12582912.0f));
            q[i] = __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
        }
        int sum = __dp4a((int)q[1], 0x01010101, __dp4a((int)q[0], 0x01010101, 0));
        sum += __shfl_xor_sync(~0u, sum, 1);
        int other = __shfl_xor_sync(~0u, sum, 2);
        if (!live) return;
        u32 block = eighth / 4, e = eighth % 4;
        *(uint2 *)(work + ((e / 2) * UNITS + block) * 16 + e % 2 * 8) = make_uint2(q[0], q[1]);
        if (e == 0) *(float4 *)(work + (2 * UNITS + block) * 16) = make_float4(scale, scale * (float)sum, scale * (float)other, 0.0f);
    }
}

// The input into `work`, times the norm's weights; the norm's factor is for the results. Sums of squares by warp.
template <class V> __device__ __forceinline__ void stage(Watch &w, Shared *s, const Instruction &in, const float *x, u32 tag, u32 parity) {
    constexpr u32 EIGHTHS = V::k / 8, ROUNDS = (EIGHTHS + CONSUMERS - 1) / CONSUMERS;
    u32 tid = opaque(threadIdx.x);
    const float *norm = (const float *)in.vectors[0];
    float4 weights[V::norm ? ROUNDS : 1][2];
    if constexpr (V::norm) {
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            u32 e = tid + r * CONSUMERS;
            weights[r][0] = weights[r][1] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (norm && e < EIGHTHS) {
                weights[r][0] = __ldg((const float4 *)norm + 2 * e);
                weights[r][1] = __ldg((const float4 *)norm + 2 * e + 1);
            }
        }
    }
    // A few places first, by one warp: to ask for all of it again and again would crowd the way of the weights.
    if (tid < 32) {
        const float *some = x + V::k / 8 * (tid % 8);
        Wait wait;
        while (!__all_sync(~0u, fresh(glance(some), tag))) {
            if (!__all_sync(~0u, again(w, wait, PLACE_INPUT))) break;
        }
    }
    consumers_meet();
    uint4 got[ROUNDS][2];
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 e = tid + r * CONSUMERS;
#pragma unroll
        for (int h = 0; h < 2; h++) got[r][h] = e < EIGHTHS ? glance4(x + e * 8 + h * 4) : make_uint4(tag, tag, tag, tag);
    }
    Wait wait;
    for (;;) {
        bool all = true;
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (!fresh(got[r][h], tag)) {
                    all = false;
                    got[r][h] = glance4(x + (tid + r * CONSUMERS) * 8 + h * 4);
                }
        if (all || !again(w, wait, PLACE_INPUT)) break;
    }
    __syncwarp();
    float squares = 0.0f;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 e = tid + r * CONSUMERS;
        bool live = e < EIGHTHS;
        float v[8] = {value(got[r][0].x), value(got[r][0].y), value(got[r][0].z), value(got[r][0].w),
                      value(got[r][1].x), value(got[r][1].y), value(got[r][1].z), value(got[r][1].w)};
        if (!live) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = 0.0f;
        }
        if constexpr (V::norm) {
            float g[8] = {weights[r][0].x, weights[r][0].y, weights[r][0].z, weights[r][0].w,
                          weights[r][1].x, weights[r][1].y, weights[r][1].z, weights[r][1].w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                squares = fmaf(v[i], v[i], squares);
                v[i] *= g[i];
            }
        }
        put8<V>(s->work, e, live, v);
    }
    if constexpr (V::norm) {
        squares = warp_sum(squares);
        if (tid % 32 == 0) s->squares[parity][tid / 32] = squares;
    }
    consumers_meet();
}

// What a lane multiplies with.
template <class V, bool BLOCKS> struct Held;

template <class V> struct Held<V, true> {
    using P = Part<V>;
    using F = typename V::Format;
    int q[P::ROUNDS][8];
    float scale[P::ROUNDS], low[P::ROUNDS], high[P::ROUNDS];

    __device__ __forceinline__ void load(const u8 *work, u32 first, u32 lane) {
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 at = lane + 32 * r, unit = first + at;
            bool live = at < P::EACH && unit < P::UNITS;
            int4 a = make_int4(0, 0, 0, 0), b = a;
            float4 side = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (live) {
                a = *(const int4 *)(work + unit * 16);
                b = *(const int4 *)(work + (P::UNITS + unit) * 16);
                side = *(const float4 *)(work + (2 * P::UNITS + unit) * 16);
            }
            q[r][0] = a.x, q[r][1] = a.y, q[r][2] = a.z, q[r][3] = a.w;
            q[r][4] = b.x, q[r][5] = b.y, q[r][6] = b.z, q[r][7] = b.w;
            scale[r] = side.x;
            low[r] = F::HALVES ? side.y : F::CENTRE ? (float)-F::CENTRE * (side.y + side.z) : side.y + side.z;
            high[r] = side.z;
        }
    }

    __device__ __forceinline__ float add(const u8 *const p[], u32 unit, u32 r, float sum) const {
        Block32 w = F::load(p, unit);
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
#pragma unroll
        for (int j = 0; j < 8; j++) dot = __dp4a((int)w.q[j], q[r][j], dot);
        if constexpr (F::CENTRE != 0) return fmaf(w.d[0], fmaf(scale[r], (float)dot, low[r]), sum);
        sum = fmaf(w.d[0], scale[r] * (float)dot, sum);
        return F::OFFSET ? fmaf(w.m[0], low[r], sum) : sum;
    }
};

template <class V> struct Held<V, false> {
    using P = Part<V>;
    using F = typename V::Format;
    float x[P::ROUNDS][8];

    __device__ __forceinline__ void load(const u8 *work, u32 first, u32 lane) {
#pragma unroll
        for (u32 r = 0; r < P::ROUNDS; r++) {
            u32 at = lane + 32 * r, unit = first + at;
            bool live = at < P::EACH && unit < P::UNITS;
            float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
            if (live) {
                a = *(const float4 *)(work + unit * 16);
                b = *(const float4 *)(work + (P::UNITS + unit) * 16);
            }
            x[r][0] = a.x, x[r][1] = a.y, x[r][2] = a.z, x[r][3] = a.w;
            x[r][4] = b.x, x[r][5] = b.y, x[r][6] = b.z, x[r][7] = b.w;
        }
    }

    __device__ __forceinline__ float add(const u8 *const p[], u32 unit, u32 r, float sum) const {
        float w[8];
        F::load8(p, unit, w);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(w[e], x[r][e], sum);
        return sum;
    }
};

// M rows times what the lanes hold: each lane's part of the sums.
template <class V, int M>
__device__ __forceinline__ void dot(const Held<V, V::Format::BLOCKS> &x, const u8 *const (&p)[M][MOST_PLANES], u32 first, u32 lane, float (&sum)[M]) {
    using P = Part<V>;
#pragma unroll
    for (int m = 0; m < M; m++) sum[m] = 0.0f;
#pragma unroll
    for (u32 r = 0; r < P::ROUNDS; r++) {
        u32 at = lane + 32 * r, unit = first + at;
        // What is held is zero there; the place only has to exist.
        if (P::EACH % 32 && at >= P::EACH) unit = first;
        if (P::UNITS % P::EACH && unit >= P::UNITS) unit = first;
#pragma unroll
        for (int m = 0; m < M; m++) sum[m] = x.add(p[m], unit, r, sum[m]);
    }
}

// Half of the way to the sums over all lanes: 16 parts of the first in the lower half of the warp, of the second in the
// upper one.
__device__ __forceinline__ float halves(float a, float b, u32 lane) {
    bool upper = lane & 16;
    return (upper ? b : a) + __shfl_xor_sync(~0u, upper ? a : b, 16);
}

// Rows `row`, `row` + GROUPS, ... of the `here` of one slot, to the outputs from row `done` on.
template <class V>
__device__ __forceinline__ void rows_of(const Held<V, V::Format::BLOCKS> &x, const u8 *slot, float (*outputs)[16], u32 done, u32 row, u32 here, u32 part,
                                        u32 lane) {
    using L = Slot<V>;
    constexpr u32 STEP = Part<V>::GROUPS;
    u32 first = part * Part<V>::EACH, upper = lane / 16;
    auto place = [&](u32 set, u32 r, const u8 *(&p)[MOST_PLANES]) {
#pragma unroll
        for (int i = 0; i < L::F::PLANES; i++) p[i] = slot + V::rows * (L::before(i) + set * L::ROW) + r * L::stride(i);
    };
    float *to = &outputs[done * L::SETS * V::split + part][lane % 16];
    if constexpr (L::SETS == 2) {
        for (; row < here; row += STEP) {
            const u8 *p[2][MOST_PLANES];
            place(0, row, p[0]);
            place(1, row, p[1]);
            float sum[2];
            dot<V, 2>(x, p, first, lane, sum);
            to[(row * 2 + upper) * V::split * 16] = halves(sum[0], sum[1], lane);
        }
    } else {
        for (; row + STEP < here; row += 2 * STEP) {
            const u8 *p[2][MOST_PLANES];
            place(0, row, p[0]);
            place(0, row + STEP, p[1]);
            float sum[2];
            dot<V, 2>(x, p, first, lane, sum);
            to[(row + upper * STEP) * V::split * 16] = halves(sum[0], sum[1], lane);
        }
        if (row < here) {
            const u8 *p[1][MOST_PLANES];
            place(0, row, p[0]);
            float sum[1];
            dot<V, 1>(x, p, first, lane, sum);
            float v = halves(sum[0], sum[0], lane);
            if (lane < 16) to[row * V::split * 16] = v;
        }
    }
}

// What two neighbouring lanes have of a row, added up: `odd` says which of them this is.
template <class V> __device__ __forceinline__ float total(const float (*outputs)[16], u32 row, u32 odd) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < V::split; i++) {
        const float4 *parts = (const float4 *)outputs[row * V::split + i] + 2 * odd;
        float4 a = parts[0], b = parts[1];
        sum += ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    }
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

// A product, its input from the exchange, its output to the exchange or (logits) to plain memory. Gives back the largest
// logit that this thread has seen.
template <class V>
__device__ __forceinline__ u64 product(Watch &w, Shared *s, Ring &ring, float *exchange, float *logits, const Instruction &in, const Share &share,
                                       u32 turn, u32 &parity, u32 &half, bool mute) {
    using L = Slot<V>;
    using P = Part<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    STAMP(0);
    if (!(in.flags & REUSES_INPUT)) {
        parity ^= 1;
        stage<V>(w, s, in, exchange + in.in, tag_of(turn, in.reads_per_turn, in.reads), parity);
    }
    STAMP(1);
    Held<V, V::Format::BLOCKS> x;
    x.load(s->work, warp % V::split * P::EACH, lane);
    // Two halves of the outputs' room take turns: a segment need not wait until the one before is read.
    constexpr u32 ROOM = OUTPUTS / (L::SETS * V::split), MOST = CONSUMERS / 2, SEGMENT = (ROOM < MOST ? ROOM : MOST) / V::rows * V::rows;
    static_assert(SEGMENT > 0, "too little room for outputs");
    float *out = exchange + in.out + share.first;
    u32 tag = tag_of(turn, in.writes_per_turn, in.writes);
    u64 best = 0;
    float factor = 1.0f;
    // Two neighbouring lanes finish a row.
    u32 mine = tid / 2;
    for (u32 begin = 0; begin < share.rows; begin += SEGMENT, half ^= 1) {
        u32 rows = min(SEGMENT, share.rows - begin);
        float(*outputs)[16] = s->outputs[half];
        float before = 0.0f;
        if (V::output == ADD && mine < rows) before = value(glance(out + begin + mine));
        u32 slots = (rows + V::rows - 1) / V::rows;
        u32 group = warp / V::split, part = warp % V::split;
        for (u32 i = 0; i < slots; i++) {
            const u8 *slot = ring.take(w, ring.next + i);
            u32 done = i * V::rows, row = V::rows % P::GROUPS ? (group + P::GROUPS - (begin + done) % P::GROUPS) % P::GROUPS : group;
            rows_of<V>(x, slot, outputs, done, row, min((u32)V::rows, rows - done), part, lane);
            ring.give(ring.next + i, lane);
        }
        ring.next += slots;
        consumers_meet();
        STAMP(2);
        if (V::norm && begin == 0) {
            float sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < WARPS; i++) sum += s->squares[parity][i];
            factor = rsqrtf(sum * (1.0f / (float)V::k) + V::eps);
        }
        if (warp * 16 >= rows) continue;
        u32 row = min(mine, rows - 1);
        float v = total<V>(outputs, row * L::SETS, tid & 1) * factor;
        if constexpr (V::output == ACT_MUL) v = activate(V::act, v) * (total<V>(outputs, row * L::SETS + 1, tid & 1) * factor);
        if (mine >= rows || tid & 1) continue;
        if constexpr (V::output == ADD) v += before;
        if constexpr (V::output == LOGITS) {
            v *= V::scale;
            if constexpr (V::cap != 0.0f) v = V::cap * tanhf(v / V::cap);
            u32 id = share.first + begin + mine;
            logits[id] = v;
            u64 rank = v == v ? ranked(v, id) : 0;
            best = rank > best ? rank : best;
        } else {
            if (!mute) publish(out + begin + mine, v, tag);
        }
    }
    STAMP(3);
    return best;
}
