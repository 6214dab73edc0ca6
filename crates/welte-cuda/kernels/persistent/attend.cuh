// Norms and rope of queries and keys, the append, and attention: one instruction. A job is a run of the context for some of
// the queries that share a kv head. While the context is short a job is one head and all of the context, and what it gives is
// the output; then a job is one or two heads that share keys and one split, and the splits are added up in a further step.
// Keys and values of earlier turns are asked for before this turn's queries are there.
#pragma once
#include "persistent/exchange.cuh"
#include "softmax.cuh"

// Cosines and sines of this turn's position for every rope of the model, one after the other.
template <class V> __device__ __forceinline__ void fill_angles(Shared *s, const float *freqs, u32 position) {
    for (u32 i = threadIdx.x; i < V::rot / 2; i += CONSUMERS) {
        float c, sn;
        turn_by((float)position, freqs[i], V::magnitude, c, sn);
        s->angles[V::angles + i] = make_float2(c, sn);
    }
}

// Where a job's numbers lie in `work`: the queries as floats, this turn's key and value as f16, room to turn a vector per
// warp, then what the warps found out.
template <class V, u32 Q> struct Desk {
    static constexpr u32 QUERIES = 0;
    static constexpr u32 KEY = QUERIES + Q * V::head_dim * 4;
    static constexpr u32 VALUE = KEY + V::head_dim * 2;
    static constexpr u32 ROOM = VALUE + V::head_dim * 2;
    static constexpr u32 FOUND = ROOM + WARPS * V::head_dim * 4;
    static constexpr u32 WIDE = V::head_dim + 4; // sums, largest, total
    static constexpr u32 BYTES = FOUND + WARPS * Q * WIDE * 4;
    static_assert(BYTES <= WORK_BYTES, "too little room for attention");
};

// One head's vector: lane l holds elements l, l + 32, ...
template <class V> struct Vector {
    static constexpr u32 EACH = V::head_dim / 32;
    float v[EACH];

    __device__ __forceinline__ void receive_from(Watch &w, const float *from, u32 tag, u32 lane) {
        u32 got[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) got[i] = glance(from + lane + 32 * i);
        Wait wait;
        for (;;) {
            bool all = true;
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (!fresh(got[i], tag)) {
                    all = false;
                    got[i] = glance(from + lane + 32 * i);
                }
            if (all || !again(w, wait, PLACE_INPUT)) break;
        }
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) v[i] = value(got[i]);
    }

    __device__ __forceinline__ void normalise(const float (&weight)[EACH]) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) sum = fmaf(v[i], v[i], sum);
        float factor = rsqrtf(warp_sum(sum) * (1.0f / (float)V::head_dim) + V::eps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) v[i] = v[i] * factor * weight[i];
    }

    __device__ __forceinline__ void rotate(const Shared *s, float *room, u32 lane) {
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) room[lane + 32 * i] = v[i];
        __syncwarp();
        constexpr u32 half = V::rot / 2;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 at = lane + 32 * i;
            if (at >= V::rot) continue;
            bool first = V::interleaved ? at % 2 == 0 : at < half;
            float other = room[V::interleaved ? at ^ 1 : first ? at + half : at - half];
            float2 a = s->angles[V::angles + (V::interleaved ? at / 2 : first ? at : at - half)];
            v[i] = first ? v[i] * a.x - other * a.y : other * a.y + v[i] * a.x;
        }
    }
};

// Queries `query`.. (Q of them) over positions first ..< last, this turn's among them or not. Leaves in FOUND what the block
// found: for every query sums by dimension, the largest score and the total of the weights, of each warp.
template <class V, u32 Q>
__device__ __forceinline__ void scan(Watch &w, Shared *s, const Kv &kv, const Instruction &in, const float *qkv, u32 tag, u32 query, u32 first, u32 last,
                                     u32 position) {
    using D = Desk<V, Q>;
    constexpr u32 HD = V::head_dim, LANES = HD / 8, AT_ONCE = 32 / LANES, NEXT = 4, STEP = WARPS * AT_ONCE;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32;
    u32 chunk = lane % LANES, group = lane / LANES;
    u32 head = query / (V::heads / V::kv_heads);
    float *queries = (float *)(s->work + D::QUERIES);
    auto row = [&](u32 part, u32 at) {
        return (const uint4 *)(kv_head(kv, part, s->pages[at / PAGE], head) + (u64)(at % PAGE) * KV_ROW) + chunk;
    };
    uint4 k[NEXT], v[NEXT];
    auto fetch = [&](u32 part, u32 from, uint4 (&to)[NEXT]) {
#pragma unroll
        for (u32 i = 0; i < NEXT; i++) {
            u32 at = from + i * STEP + warp * AT_ONCE + group;
            to[i] = at < last && at < position ? __ldcg(row(part, at)) : make_uint4(0, 0, 0, 0);
        }
    };
    fetch(0, first, k);
    fetch(1, first, v);
    // Vectors: the queries, then this turn's key and value where they belong to this run.
    bool own = position >= first && position < last;
    for (u32 n = warp; n < (own ? Q + 2 : Q); n += WARPS) {
        bool is_query = n < Q, is_key = n == Q;
        const float *weight = (const float *)in.vectors[is_query ? 0 : 1];
        const float *from = qkv + (is_query ? query + n : is_key ? V::heads + head : V::heads + V::kv_heads + head) * HD;
        Vector<V> x;
        float norm[Vector<V>::EACH];
        bool normed = weight && (is_query || is_key);
#pragma unroll
        for (u32 i = 0; i < Vector<V>::EACH; i++) norm[i] = normed ? __ldg(weight + lane + 32 * i) : 1.0f;
        x.receive_from(w, from, tag, lane);
        if (normed) x.normalise(norm);
        if (is_query || is_key) x.rotate(s, (float *)(s->work + D::ROOM) + warp * HD, lane);
        if (is_query) {
            float by = V::softcap == 0.0f ? V::scale * LOG2E : V::scale;
#pragma unroll
            for (u32 i = 0; i < Vector<V>::EACH; i++) queries[n * HD + lane + 32 * i] = x.v[i] * by;
            continue;
        }
        __half *here = (__half *)(s->work + (is_key ? D::KEY : D::VALUE));
        bool stores = query % (V::heads / V::kv_heads) == 0;
        __half *there = (__half *)(kv_head(kv, !is_key, s->pages[position / PAGE], head) + (u64)(position % PAGE) * KV_ROW);
#pragma unroll
        for (u32 i = 0; i < Vector<V>::EACH; i++) {
            __half h = __float2half_rn(x.v[i]);
            here[lane + 32 * i] = h;
            if (stores) there[lane + 32 * i] = h;
        }
    }
    consumers_meet();
    STAMP(1);
    float q[Q][8], sum[Q][8], most[Q], all[Q];
#pragma unroll
    for (u32 n = 0; n < Q; n++) {
        float4 a = *(const float4 *)(queries + n * HD + chunk * 8), b = *(const float4 *)(queries + n * HD + chunk * 8 + 4);
        q[n][0] = a.x, q[n][1] = a.y, q[n][2] = a.z, q[n][3] = a.w, q[n][4] = b.x, q[n][5] = b.y, q[n][6] = b.z, q[n][7] = b.w;
#pragma unroll
        for (int e = 0; e < 8; e++) sum[n][e] = 0.0f;
        most[n] = -1e30f;
        all[n] = 0.0f;
    }
    for (u32 from = first; from < last; from += NEXT * STEP) {
        float score[NEXT][Q];
#pragma unroll
        for (u32 i = 0; i < NEXT; i++) {
            u32 at = from + i * STEP + warp * AT_ONCE + group;
            if (own && at == position) {
                k[i] = ((const uint4 *)(s->work + D::KEY))[chunk];
                v[i] = ((const uint4 *)(s->work + D::VALUE))[chunk];
            }
            const __half2 *h = (const __half2 *)&k[i];
            float2 f[4] = {__half22float2(h[0]), __half22float2(h[1]), __half22float2(h[2]), __half22float2(h[3])};
#pragma unroll
            for (u32 n = 0; n < Q; n++) {
                float a = f[0].x * q[n][0], b = f[0].y * q[n][1];
#pragma unroll
                for (int e = 1; e < 4; e++) {
                    a = fmaf(f[e].x, q[n][2 * e], a);
                    b = fmaf(f[e].y, q[n][2 * e + 1], b);
                }
                score[i][n] = a + b;
            }
        }
        // What comes next is asked for as soon as there is room for it.
        fetch(0, from + NEXT * STEP, k);
#pragma unroll
        for (u32 o = LANES / 2; o > 0; o >>= 1)
#pragma unroll
            for (u32 i = 0; i < NEXT; i++)
#pragma unroll
                for (u32 n = 0; n < Q; n++) score[i][n] += __shfl_xor_sync(~0u, score[i][n], o);
#pragma unroll
        for (u32 n = 0; n < Q; n++) {
            float largest = most[n];
#pragma unroll
            for (u32 i = 0; i < NEXT; i++) {
                u32 at = from + i * STEP + warp * AT_ONCE + group;
                if constexpr (V::softcap != 0.0f) score[i][n] = V::softcap * LOG2E * tanhf(score[i][n] / V::softcap);
                if (at >= last) score[i][n] = NEVER;
                largest = fmaxf(largest, score[i][n]);
            }
            float shrink = power(most[n] - largest);
            most[n] = largest;
            all[n] *= shrink;
#pragma unroll
            for (int e = 0; e < 8; e++) sum[n][e] *= shrink;
        }
#pragma unroll
        for (u32 i = 0; i < NEXT; i++) {
            const __half2 *h = (const __half2 *)&v[i];
            float2 f[4] = {__half22float2(h[0]), __half22float2(h[1]), __half22float2(h[2]), __half22float2(h[3])};
#pragma unroll
            for (u32 n = 0; n < Q; n++) {
                float weight = power(score[i][n] - most[n]);
                all[n] += weight;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum[n][2 * e] = fmaf(weight, f[e].x, sum[n][2 * e]);
                    sum[n][2 * e + 1] = fmaf(weight, f[e].y, sum[n][2 * e + 1]);
                }
            }
        }
        fetch(1, from + NEXT * STEP, v);
    }
    // The groups of lanes of a warp come together.
#pragma unroll
    for (u32 o = LANES; o < 32; o <<= 1)
#pragma unroll
        for (u32 n = 0; n < Q; n++) {
            float other = __shfl_xor_sync(~0u, most[n], o), largest = fmaxf(most[n], other);
            float mine = power(most[n] - largest), theirs = power(other - largest);
            most[n] = largest;
            all[n] = all[n] * mine + __shfl_xor_sync(~0u, all[n], o) * theirs;
#pragma unroll
            for (int e = 0; e < 8; e++) sum[n][e] = sum[n][e] * mine + __shfl_xor_sync(~0u, sum[n][e], o) * theirs;
        }
    if (group == 0) {
#pragma unroll
        for (u32 n = 0; n < Q; n++) {
            float *found = (float *)(s->work + D::FOUND) + (warp * Q + n) * D::WIDE;
            *(float4 *)(found + chunk * 8) = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
            *(float4 *)(found + chunk * 8 + 4) = make_float4(sum[n][4], sum[n][5], sum[n][6], sum[n][7]);
            if (chunk == 0) *(float2 *)(found + HD) = make_float2(most[n], all[n]);
        }
    }
    consumers_meet();
}

// What the warps found of query n, for one dimension; the same for all dimensions: the largest score and the total.
template <class V, u32 Q> __device__ __forceinline__ float gathered(const Shared *s, u32 n, u32 d, float &largest, float &all) {
    using D = Desk<V, Q>;
    const float *found = (const float *)(s->work + D::FOUND) + n * D::WIDE;
    float most[WARPS];
    largest = -1e30f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        most[i] = found[i * Q * D::WIDE + V::head_dim];
        largest = fmaxf(largest, most[i]);
    }
    float sum = 0.0f;
    all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        float by = power(most[i] - largest);
        sum = fmaf(by, found[i * Q * D::WIDE + d], sum);
        all = fmaf(by, found[i * Q * D::WIDE + V::head_dim + 1], all);
    }
    return sum;
}

template <class V>
__device__ __forceinline__ void attention(Watch &w, Shared *s, Kv kv, float *exchange, const Instruction &in, u32 turn, u32 position, bool mute) {
    constexpr u32 HD = V::head_dim, WIDE = HD + 4;
    kv.layer = in.layer;
    STAMP(0);
    u32 first = V::window && position + 1 > V::window ? position + 1 - V::window : 0, count = position + 1 - first;
    const float *qkv = exchange + in.in;
    float *out = exchange + in.out, *partial = exchange + V::partial;
    u32 tag = tag_of(turn, in.reads_per_turn, in.reads), out_tag = tag_of(turn, in.writes_per_turn, in.writes);
    if (count <= V::solo) {
        u32 head = blockIdx.x;
        if (head >= V::heads) return;
        scan<V, 1>(w, s, kv, in, qkv, tag, head, first, position + 1, position);
        for (u32 d = threadIdx.x; d < HD; d += CONSUMERS) {
            float largest, all, sum = gathered<V, 1>(s, 0, d, largest, all);
            if (!mute) publish(out + head * HD + d, __fdividef(sum, all), out_tag);
        }
        STAMP(3);
        consumers_meet();
        return;
    }
    // All splits are always there, if empty: what they leave is never of an older instruction.
    constexpr u32 Q = V::queries, JOBS = V::heads / Q;
    u32 splits = min(gridDim.x / JOBS, (u32)V::splits), each = (count + splits - 1) / splits;
    // Neighbouring blocks read the same keys and values.
    u32 job = blockIdx.x % JOBS, split = blockIdx.x / JOBS;
    if (split < splits) {
        u32 to = min(first + (split + 1) * each, position + 1), from = min(first + split * each, to);
        scan<V, Q>(w, s, kv, in, qkv, tag, job * Q, from, to, position);
        for (u32 i = threadIdx.x; i < Q * HD; i += CONSUMERS) {
            u32 n = i / HD, d = i % HD;
            float *mine = partial + ((job * Q + n) * V::splits + split) * WIDE;
            float largest, all, sum = gathered<V, Q>(s, n, d, largest, all);
            if (mute) continue;
            publish(mine + d, sum, out_tag);
            if (d == 0) {
                publish(mine + HD, largest, out_tag);
                publish(mine + HD + 1, all, out_tag);
            }
        }
        consumers_meet();
    }
    STAMP(2);
    // The last blocks have the least to do with the splits: they add up.
    u32 query = gridDim.x - 1 - blockIdx.x;
    if (query >= V::heads) return;
    const float *theirs = partial + query * V::splits * WIDE;
    for (u32 d = threadIdx.x; d < HD; d += CONSUMERS) {
        float largest = -1e30f, all = 0.0f, sum = 0.0f;
        for (u32 i = 0; i < splits; i += 4) {
            u32 got[4][3];
            Wait wait;
            for (;;) {
                bool there = true;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const float *from = theirs + min(i + j, splits - 1) * WIDE;
                    got[j][0] = glance(from + d), got[j][1] = glance(from + HD), got[j][2] = glance(from + HD + 1);
                }
#pragma unroll
                for (u32 j = 0; j < 4; j++) there = there && fresh(got[j][0], out_tag) && fresh(got[j][1], out_tag) && fresh(got[j][2], out_tag);
                if (there || !again(w, wait, PLACE_INPUT)) break;
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if (i + j >= splits) break;
                float m = value(got[j][1]), larger = fmaxf(largest, m), old = power(largest - larger), by = power(m - larger);
                sum = sum * old + value(got[j][0]) * by;
                all = all * old + value(got[j][2]) * by;
                largest = larger;
            }
        }
        if (!mute) publish(out + query * HD + d, __fdividef(sum, all), out_tag);
    }
    STAMP(3);
}
