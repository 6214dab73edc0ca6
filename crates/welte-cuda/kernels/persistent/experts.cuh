// Products with the matrices of the chosen experts. Their weights come through the ring as those of other products do; lanes multiply
// them (product.cuh).
#pragma once
#include "persistent/product.cuh"
#include "persistent/route.cuh"

#if CHOSEN
// Gate and up: h[i] = act(gate x) * up x for the i-th chosen expert; without a gate act(up x). The results of all experts are one vector, whose values the blocks
// share out; an expert has V::vector floats of it, of which this rank makes V::n.
template <class V>
__device__ __forceinline__ void experts_up(WaitContext &w, Shared *s, Ring &ring, float *exchange, const Instruction &in, const Share &share, u32 turn,
                                           const Choice &choice, u32 parity, u32 &half, bool stalled) {
    using L = Slot<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    u8 *slice = s->scratchpad + warp * Staging<V>::BYTES;
    STAMP(0);
    LaneMultiplier<V> x;
    x.begin(warp, lane);
    u32 tag = tag_of(turn, in.writes_per_turn, in.writes);
    stage<V>(w, in, exchange + in.input, tag_of(turn, in.reads_per_turn, in.reads), slice, warp, lane, &s->squares[parity][warp]);
    STAMP(1);
    x.load(slice, lane);
    for (u32 begin = 0; begin < share.rows; begin += L::ROOM, half ^= 1) {
        u32 rows = min(L::ROOM, share.rows - begin), at = share.first + begin + tid;
        float(*parts)[OUTPUTS] = s->parts[half];
        float biases[L::SETS] = {};
        for (u32 done = 0, here; done < rows; done += here) {
            here = expert_rows<V>(share, begin + done);
            const u8 *slot = ring.slot<V>();
            ring.wait(w);
            if (V::bias && done == 0 && tid < rows) {
                const float *bias = (const float *)in.vectors[1] + (u64)min(choice.experts[at / V::n], V::experts - 1) * (L::SETS * V::n) + at % V::n;
#pragma unroll
                for (u32 i = 0; i < L::SETS; i++) biases[i] = __ldg(bias + i * V::n);
            }
            x.multiply(slot, parts[warp], done, here, lane);
            ring.release<V>(lane);
        }
        consumers_meet();
        STAMP(2);
        if (tid >= rows) continue;
        float factor = norm_factor<V>(s->squares[parity]);
        float v = fmaf(sum_slices(parts, tid), factor, biases[0]);
        if constexpr (L::SETS == 1) v = activate(V::act, v);
        else v = gated(V::act, v, fmaf(sum_slices(parts, OUTPUTS / 2 + tid), factor, biases[1]));
        if (!stalled) publish_to<V::exchanged>(s, exchange + in.output + at / V::n * V::vector + at % V::n, v, tag);
    }
    STAMP(3);
    w.product_end = (u32)clock64();
}

// Stages this warp's slices of the inputs of all experts: many loads at a time, of several experts.
template <class V> __device__ __forceinline__ void stage_experts(WaitContext &w, const float *x, u32 tag, u8 *slices, u32 warp, u32 lane) {
    using P = Partition<V>;
    constexpr u32 EACH = P::EACH * P::UNIT / 4, MOST = 14; // quads of a slice; rounds of loads
    constexpr u32 FIT = 32 * MOST / EACH, TOGETHER = FIT == 0 ? 1 : FIT < V::used ? FIT : V::used, ROUNDS = (TOGETHER * EACH + 31) / 32;
    u32 live = P::units(warp) * P::UNIT / 4;
    const float *from = x + warp * P::EACH * P::UNIT;
    if (warp == 0 && lane == 0) w.s->signals.awaiting = AWAITS_INPUT;
    wait_ticks(w.product_end, w.poll_delay);
#pragma unroll 1
    for (u32 first = 0; first < V::used; first += TOGETHER) {
        uint4 got[ROUNDS];
        auto load = [&](u32 r) {
            u32 quad = lane + 32 * r, expert = first + quad / EACH;
            if (quad < TOGETHER * EACH && expert < V::used && quad % EACH < live) got[r] = peek4(from + expert * V::k + quad % EACH * 4);
        };
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) {
            got[r] = make_uint4(tag, tag, tag, tag);
            load(r);
        }
        WaitState wait;
        for (;;) {
            bool all = true;
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) all &= fresh(got[r], tag);
            if (__all_sync(~0u, all) || !__all_sync(~0u, keep_waiting(w, wait, PLACE_INPUT))) break;
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++)
                if (!fresh(got[r], tag)) load(r);
        }
        float v[ROUNDS][4];
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++) v[r][0] = value(got[r].x), v[r][1] = value(got[r].y), v[r][2] = value(got[r].z), v[r][3] = value(got[r].w);
        // The slice of an expert, and the quad in it.
        auto place = [&](u32 r, u32 &quad) -> u8 * {
            u32 all = lane + 32 * r, expert = first + all / EACH;
            quad = all % EACH;
            return all < TOGETHER * EACH && expert < V::used && quad < live ? slices + expert * P::BYTES : nullptr;
        };
        if constexpr (V::Format::BLOCKS) {
            QuantisedQuads<ROUNDS> quantised(v);
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) {
                u32 quad;
                if (u8 *slice = place(r, quad)) store_block_quad<V>(slice, quad, quantised.q[r], quantised.side[r]);
            }
        } else {
#pragma unroll
            for (u32 r = 0; r < ROUNDS; r++) {
                u32 quad;
                if (u8 *slice = place(r, quad)) store_float_quad<V>(slice, quad, v[r]);
            }
        }
    }
    if (warp == 0 && lane == 0) w.s->signals.awaiting = 0;
    __syncwarp();
}

// Down: y += the sum of share * (W h[i] + bias) over the chosen experts, or y = that sum. A block has the same rows of all experts.
template <class V>
__device__ __forceinline__ void experts_down(WaitContext &w, Shared *s, Ring &ring, float *exchange, const Instruction &in, const Share &share, u32 turn,
                                             const Choice &choice, u32 &half, bool stalled) {
    using L = Slot<V>;
    using P = Partition<V>;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32, tag = tag_of(turn, in.writes_per_turn, in.writes);
    u8 *slices = s->scratchpad + warp * V::used * P::BYTES;
    STAMP(0);
    LaneMultiplier<V> x;
    x.begin(warp, lane);
    stage_experts<V>(w, exchange + in.input, tag_of(turn, in.reads_per_turn, in.reads), slices, warp, lane);
    STAMP(1);
    float *out = exchange + in.output + share.first, *parts = s->parts[half][warp];
    float before = 0.0f;
    if (V::output == Output::Add && tid < share.rows) before = value(peek(out + tid));
#pragma unroll 1
    for (u32 i = 0; i < V::used; i++) {
        x.load(slices + i * P::BYTES, lane);
        float by = 0.0f;
        for (u32 done = 0, here; done < share.rows; done += here) {
            here = expert_rows<V>(share, done);
            const u8 *slot = ring.slot<V>();
            ring.wait(w);
            by = choice.shares[i];
            if (V::bias && done == 0 && tid < share.rows)
                before = fmaf(by, __ldg((const float *)in.vectors[1] + (u64)min(choice.experts[i], V::experts - 1) * V::n + share.first + tid), before);
            multiply_slot<V>(x.x, x.units, slot, done, here, lane, [=](u32 at, float sum) { parts[at] = i == 0 ? by * sum : fmaf(by, sum, parts[at]); });
            ring.release<V>(lane);
        }
    }
    consumers_meet();
    STAMP(2);
    if (tid < share.rows && !stalled) publish_to<V::exchanged>(s, out + tid, sum_slices(s->parts[half], tid) + before, tag);
    half ^= 1;
    STAMP(3);
    w.product_end = (u32)clock64();
}
#endif
