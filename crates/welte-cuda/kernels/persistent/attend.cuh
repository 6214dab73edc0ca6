// Norms and rope of queries and keys, the append to the cache, and attention: one instruction. A job is a kv head, or up to eight of
// the queries that share it, with a split of the context; so keys and values are read once. A short context is one split, and the
// job's result is the output. Otherwise a second step, in which every block takes part, merges the splits.
//
// Products run on tensor cores with operands straight from memory. A warp has every eighth tile of 16 positions. Lane (g, t) =
// (lane / 4, lane % 4) loads 16 bytes of the keys of positions g and g + 8 per 32 dimensions: two steps of a product with the
// queries. Rows 0-7 of that operand are the queries as f16, rows 8-15 what f16 rounds off. The softmax weights are then in the
// lanes that need them as second operand of the product with the transposed values. The lane loads 16 bytes of the values of positions
// 2t, 2t + 1, 2t + 8, 2t + 9 per 64 dimensions, paired by a byte permutation.
//
// Keys and values of earlier turns are requested before this turn's queries arrive.
//
// With large heads one warp lacks the registers for all dimensions of a tile. Then a *team* of V::team warps shares a tile: each has some of the
// dimensions of its keys and values. The team adds up its scores, and each warp multiplies its part of the values.
//
// A layer may attend to the keys and values of an earlier one (V::shares). Those of this turn are not visible to other blocks yet where
// they lie in the cache, so that layer also publishes them (V::source_layer).
#pragma once
#include "persistent/cached.cuh"
#include "persistent/exchange.cuh"

constexpr u32 TILE_POSITIONS = 16;
constexpr float LOWEST_SCORE = -1e30f;
constexpr u32 NO_LAYER = ~0u; // of V::source_layer

// Cosines and sines of this turn's position, for every rope of the model.
template <class V> __device__ __forceinline__ void fill_angles(float2 *angles, const float *freqs, u32 position) {
    for (u32 i = threadIdx.x; i < V::rot / 2; i += CONSUMERS) {
        float c, sn;
        turn_by((float)position, freqs[i], V::magnitude, c, sn);
        angles[V::angles + i] = make_float2(c, sn);
    }
}

// The layout of a job's scratchpad: the queries (pairs of elements as f16, each followed by what f16 rounds off), this turn's key and
// value, then the results of the warps.
template <class V> struct Scratchpad {
    static constexpr u32 HD = V::head_dim, Q = V::queries;
    static constexpr u32 TEAM = V::team, TEAMS = WARPS / TEAM, DIMS = HD / TEAM; // tiles at a time, and dimensions of a warp
    static constexpr u32 C32 = (DIMS + 31) / 32, D64 = (DIMS + 63) / 64;
    static constexpr u32 CACHED = kv_row_bytes(HD);
    static constexpr u32 ROW = HD * 4 + 16; // bytes of a query; neighbouring queries use different banks
    static constexpr u32 KEY = Q * ROW, KV_BYTES = round_up(CACHED, 16);
    static constexpr u32 VALUE = KEY + KV_BYTES;
    static constexpr u32 WARP_SUMS = VALUE + KV_BYTES;
    static constexpr u32 SUMS_STRIDE = HD + 4;
    static constexpr u32 WARP_STATS = WARP_SUMS + TEAMS * Q * SUMS_STRIDE * 4; // per query: the largest score of each team, then the sums of their weights
    static constexpr u32 UNROUNDED = WARP_STATS + Q * 2 * WARPS * 4; // this turn's key and value before they are rounded
    static constexpr u32 SCORES = UNROUNDED + (KV_Q8 ? 2 * HD * 4 : 0); // two sets of scores of each warp, used in turn
    static constexpr u32 BYTES = SCORES + (TEAM > 1 ? 2 * WARPS * 32 * 16 : 0);
    static_assert(BYTES <= SCRATCHPAD_BYTES, "too little room for attention");
    static_assert(HD % 16 == 0 && V::rot % 4 == 0 && Q <= 8 && WARPS % 4 == 0, "shapes that attention is made for");
    static_assert(TEAM == 1 || (WARPS % TEAM == 0 && HD % (64 * TEAM) == 0), "a warp has whole runs of dimensions");

    // A warp's team, and which part of the dimensions it has.
    static __device__ __forceinline__ u32 team(u32 warp) { return TEAM == 1 ? warp : warp / TEAM; }
    static __device__ __forceinline__ u32 part(u32 warp) { return TEAM == 1 ? 0 : warp % TEAM; }
    // The first of its chunks of eight dimensions.
    static __device__ __forceinline__ u32 first_chunk(u32 warp) { return part(warp) * (DIMS / 8); }
};

// One job. It keeps few numbers, because registers are for keys and values; the rest is computed when needed.
template <class V> struct Job {
    static constexpr u32 GROUP = V::heads / V::kv_heads, JOBS = V::kv_heads * V::query_groups;
    static constexpr u32 CACHED = kv_row_bytes(V::head_dim), PAGE_BYTES = V::kv_heads * PAGE * CACHED;
    u32 number;
    u32 begin;      // its first tile
    u32 to;         // end of its positions; the last tile has at least one of them
    const u8 *keys; // of the head, in page 0

    __device__ __forceinline__ Job(const Kv &kv, u32 nth, u32 splits, u32 position) {
        number = nth;
        u32 tile = first(position) / TILE_POSITIONS, tiles = position / TILE_POSITIONS + 1 - tile, split = number / JOBS;
        begin = tile + split * tiles / splits;
        to = min(position + 1, (tile + (split + 1) * tiles / splits) * TILE_POSITIONS);
        keys = kv_head(kv, 0, 0, head(), CACHED);
    }

    // The first position that is attended to.
    static __device__ __forceinline__ u32 first(u32 position) { return V::window && position + 1 > V::window ? position + 1 - V::window : 0; }

    __device__ __forceinline__ u32 split() const { return number / JOBS; }
    __device__ __forceinline__ u32 head() const { return number % JOBS / V::query_groups; }
    __device__ __forceinline__ u32 query_group() const { return number % JOBS % V::query_groups; }
    // The first query, and the number of queries.
    __device__ __forceinline__ u32 query() const { return head() * GROUP + query_group() * V::queries; }
    __device__ __forceinline__ u32 queries() const { return GROUP % V::queries ? min((u32)V::queries, GROUP - query_group() * V::queries) : V::queries; }
    // Whether this turn's position belongs to the split.
    __device__ __forceinline__ bool has_current(u32 position) const { return position < to; }

    __device__ __forceinline__ bool has(u32 at, u32 position) const { return at < to && (!V::window || at >= first(position)); }
    // The same, and the position is among the first `cached` ones.
    __device__ __forceinline__ bool is_cached(u32 at, u32 cached, u32 position) const { return at < min(to, cached) && (!V::window || at >= first(position)); }

    __device__ __forceinline__ const u8 *key(const Shared *s, u32 tile, u32 row) const {
        u32 at = tile * TILE_POSITIONS, more = row;
        if (PAGE % TILE_POSITIONS) at += row, more = 0;
        return keys + (u64)s->pages[V::cache * MAX_PAGES + min(at / PAGE, MAX_PAGES - 1u)] * PAGE_BYTES + (at % PAGE + more) * CACHED;
    }
    // The distance of a value from its key, in bytes.
    static __device__ __forceinline__ u64 values(const Kv &kv) { return (u64)kv.total * PAGE_BYTES; }
};

// A warp's keys of a tile. The first `cached` positions of the context are in the cache.
template <class V> struct Keys {
    using D = Scratchpad<V>;
    uint4 part[2][D::C32];

    // `chunk` is the warp's first one.
    __device__ __forceinline__ void fetch(const Shared *s, const Job<V> &job, u32 tile, u32 cached, u32 position, u32 chunk, u32 g, u32 t) {
        const u8 *first = job.key(s, tile, g);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            bool there = job.is_cached(tile * TILE_POSITIONS + h * 8 + g, cached, position);
            const u8 *row = PAGE % TILE_POSITIONS == 0 ? first + h * 8 * D::CACHED : job.key(s, tile, h * 8 + g);
#pragma unroll
            for (u32 c = 0; c < D::C32; c++) {
                // Scores of other positions are not used.
                part[h][c] = c * 32 + t * 8 < D::DIMS ? anything() : make_uint4(0, 0, 0, 0);
                if (there && c * 32 + t * 8 < D::DIMS) part[h][c] = load_cached<true>(row, chunk + t, c * 4);
            }
        }
    }

    // Puts this turn's key in row `own` of the tile.
    __device__ __forceinline__ void insert_current(const Shared *s, u32 own, u32 chunk, u32 g, u32 t) {
        const u8 *key = s->scratchpad + D::KEY;
#pragma unroll
        for (u32 h = 0; h < 2; h++)
#pragma unroll
            for (u32 c = 0; c < D::C32; c++)
                if (own == h * 8 + g && c * 32 + t * 8 < D::DIMS) part[h][c] = load_cached<false>(key, chunk + t, c * 4);
    }
};

// A warp's values of a tile.
template <class V> struct Values {
    using D = Scratchpad<V>;
    uint4 part[D::D64][4];

    static __device__ __forceinline__ u32 row(u32 i, u32 t) { return 2 * t + i % 2 + i / 2 * 8; }

    __device__ __forceinline__ void fetch(const Shared *s, const Kv &kv, const Job<V> &job, u32 tile, u32 cached, u32 position, u32 first, u32 g, u32 t) {
        const u8 *lowest = job.key(s, tile, row(0, t)) + job.values(kv);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            bool there = job.is_cached(tile * TILE_POSITIONS + row(i, t), cached, position);
            const u8 *from = PAGE % TILE_POSITIONS == 0 ? lowest + row(i, 0) * D::CACHED : job.key(s, tile, row(i, t)) + job.values(kv);
#pragma unroll
            for (u32 d = 0; d < D::D64; d++) {
                u32 chunk = d * 8 + g;
                part[d][i] = there && chunk * 8 < D::DIMS ? load_cached<true>(from, first + chunk, 0) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    __device__ __forceinline__ void insert_current(const Shared *s, u32 own, u32 first, u32 g, u32 t) {
        const u8 *value = s->scratchpad + D::VALUE;
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 d = 0; d < D::D64; d++)
                if (own == row(i, t) && (d * 8 + g) * 8 < D::DIMS) part[d][i] = load_cached<false>(value, first + g, d * 8);
    }
};

// Softmax weights of positions 2t, 2t + 1 and 2t + 8, 2t + 9 for query g, as f16 and what f16 rounds off.
struct SoftmaxWeights {
    u32 high[2], low[2];
};

// A warp's results for up to eight queries. Lane (g, t) has the largest score of query g and its part of the sum of weights; and of queries
// 2t and 2t + 1 the weighted values of dimensions 8g .. 8g + 8 of every 64.
template <class V> struct OutputSums {
    using D = Scratchpad<V>;
    float o[D::D64 * 4][4];
    float largest, total;

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (u32 i = 0; i < D::D64 * 4; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
        largest = LOWEST_SCORE;
        total = 0.0f;
    }

    __device__ __forceinline__ void add(const Values<V> &v, const SoftmaxWeights &weights) {
#pragma unroll
        for (u32 d = 0; d < D::D64; d++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 x[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    uint4 eight = widened(v.part[d][i]);
                    x[i] = j == 0 ? eight.x : j == 1 ? eight.y : j == 2 ? eight.z : eight.w;
                }
                u32 a[4] = {__byte_perm(x[0], x[1], 0x5410), __byte_perm(x[0], x[1], 0x7632), __byte_perm(x[2], x[3], 0x5410), __byte_perm(x[2], x[3], 0x7632)};
                mma_f16(o[d * 4 + j], a, weights.high[0], weights.high[1]);
                mma_f16(o[d * 4 + j], a, weights.low[0], weights.low[1]);
            }
    }

    // Scales everything down after a larger score was found.
    __device__ __forceinline__ void rescale(float to, u32 t) {
        float by = power(largest - to), a = __shfl_sync(~0u, by, 8 * t), b = __shfl_sync(~0u, by, 8 * t + 4);
        largest = to;
        total *= by;
#pragma unroll
        for (u32 i = 0; i < D::D64 * 4; i++) o[i][0] *= a, o[i][1] *= b, o[i][2] *= a, o[i][3] *= b;
    }

    __device__ __forceinline__ void save(Shared *s, const Job<V> &job, u32 warp, u32 g, u32 t) {
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 n = 2 * t + i;
            if (n >= job.queries()) continue;
            float *sums = (float *)(s->scratchpad + D::WARP_SUMS) + (D::team(warp) * D::Q + n) * D::SUMS_STRIDE + D::part(warp) * D::DIMS + g * 8;
#pragma unroll
            for (u32 d = 0; d < D::D64; d++) {
                if (d * 64 + g * 8 >= D::DIMS) continue;
                *(float4 *)(sums + d * 64) = make_float4(o[d * 4][i], o[d * 4][2 + i], o[d * 4 + 1][i], o[d * 4 + 1][2 + i]);
                *(float4 *)(sums + d * 64 + 4) = make_float4(o[d * 4 + 2][i], o[d * 4 + 2][2 + i], o[d * 4 + 3][i], o[d * 4 + 3][2 + i]);
            }
        }
        if (D::part(warp) == 0 && t == 0 && g < job.queries()) {
            float *side = (float *)(s->scratchpad + D::WARP_STATS) + g * 2 * WARPS + D::team(warp);
            side[0] = largest;
            side[WARPS] = total;
        }
    }
};

// A vector of a query, key or value on its way into the scratchpad. A lane has pairs of neighbours, so that the elements that rope turns
// together are in one lane.
template <class V> struct QkvVector {
    using D = Scratchpad<V>;
    static constexpr u32 UNITS = D::HD / 4, EACH = (UNITS + 31) / 32;
    uint2 got[EACH][2];
    float2 weight[EACH][2];

    // Where a lane's half of a unit begins.
    static __device__ __forceinline__ u32 place(u32 unit, u32 half) {
        bool apart = !V::interleaved && unit * 2 < V::rot / 2;
        return apart ? unit * 2 + half * (V::rot / 2) : unit * 4 + half * 2;
    }

    __device__ __forceinline__ void request(const float *from, const float *norm, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 unit = min(lane + 32 * i, UNITS - 1);
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                got[i][h] = load_relaxed2(from + place(unit, h));
                weight[i][h] = norm ? __ldg((const float2 *)(norm + place(unit, h))) : make_float2(1.0f, 1.0f);
            }
        }
    }

    __device__ __forceinline__ void receive(WaitContext &w, const float *from, u32 tag, u32 lane) {
        WaitState wait;
        for (;;) {
            bool all = true;
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
#pragma unroll
                for (u32 h = 0; h < 2; h++) all &= fresh(got[i][h], tag);
            if (__all_sync(~0u, all) || !__all_sync(~0u, keep_waiting(w, wait, PLACE_INPUT))) break;
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
#pragma unroll
                for (u32 h = 0; h < 2; h++)
                    if (!fresh(got[i][h], tag)) got[i][h] = load_relaxed2(from + place(min(lane + 32 * i, UNITS - 1), h));
        }
    }

    // Writes the elements in order.
    __device__ __forceinline__ void save(float *to, const float (&v)[EACH][2][2], u32 lane) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
#pragma unroll
            for (u32 h = 0; h < 2; h++)
                if (lane + 32 * i < UNITS) *(float2 *)(to + place(lane + 32 * i, h)) = make_float2(v[i][h][0], v[i][h][1]);
    }

    // Applies norm and rope, and multiplies by a factor.
    __device__ __forceinline__ void finish(const float2 *angles, float (&v)[EACH][2][2], bool norms, bool turns, float factor, u32 lane) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                v[i][h][0] = value(got[i][h].x);
                v[i][h][1] = value(got[i][h].y);
                if (UNITS % 32 == 0 || lane + 32 * i < UNITS) sum = fmaf(v[i][h][0], v[i][h][0], fmaf(v[i][h][1], v[i][h][1], sum));
            }
        if (norms) factor *= rsqrtf(warp_sum(sum) * (1.0f / (float)D::HD) + V::eps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                v[i][h][0] *= factor * weight[i][h].x;
                v[i][h][1] *= factor * weight[i][h].y;
            }
            if (!turns || (lane + 32 * i) * 2 >= V::rot / 2) continue;
            // Each of the two angles turns a pair: one element of each half, or both elements of one half.
            float4 a = *(const float4 *)&angles[V::angles + (lane + 32 * i) * 2];
#pragma unroll
            for (u32 p = 0; p < 2; p++) {
                float c = p ? a.z : a.x, sn = p ? a.w : a.y;
                float &x = V::interleaved ? v[i][p][0] : v[i][0][p], &y = V::interleaved ? v[i][p][1] : v[i][1][p];
                float turned = x * c - y * sn;
                y = x * sn + y * c;
                x = turned;
            }
        }
    }
};

// Loads this turn's queries into the scratchpad. With `more` = 2 also its key and value, which go to the cache too, unless they are those of
// another layer. A warp has one vector or two. The first vectors go to the last warps, because the first warps have tiles to load.
template <class V>
__device__ __forceinline__ void load_qkv(WaitContext &w, Shared *s, const Kv &kv, const float *qkv, const Instruction &in, u32 tag, const Job<V> &job, u32 position,
                                        const float2 *angles, u32 more, u32 warp, u32 lane) {
    using D = Scratchpad<V>;
    using X = QkvVector<V>;
    u32 queries = job.queries(), count = queries + more;
    // This turn's keys and then its values, of a layer that others share.
    const float *shared = qkv - in.input + V::shared_at;
    u32 shared_tag = tag_of(w.turn, 1, 1);
    auto to_share = [&](u32 n) { return (float *)shared + ((n - queries) * V::kv_heads + job.head()) * D::HD; };
    bool publishes = V::source_layer != NO_LAYER && in.layer == V::source_layer && job.query_group() == 0;
    auto from = [&](u32 n) {
        if (V::shares && n >= queries) return (const float *)to_share(n);
        if (V::values_are_keys && n > queries) return qkv + (V::heads + job.head()) * D::HD;
        u32 row = n < queries ? job.query() + n : n == queries ? V::heads + job.head() : V::heads + V::kv_heads + job.head();
        return qkv + row * D::HD;
    };
    auto norm = [&](u32 n) { return n <= queries ? (const float *)in.vectors[n < queries ? 0 : 1] : nullptr; };
    // One at a time: registers do not suffice for two.
#pragma unroll 1
    for (u32 n = WARPS - 1 - warp; n < count; n += WARPS) {
        X x;
        x.request(from(n), norm(n), lane);
        x.receive(w, from(n), V::shares && n >= queries ? shared_tag : tag, lane);
        bool is_query = n < queries, is_key = n == queries;
        // Without a soft cap the queries contain the change of base.
        float factor = !is_query ? 1.0f : V::softcap == 0.0f ? V::scale * LOG2E : V::scale;
        float v[X::EACH][2][2];
        x.finish(angles, v, norm(n) != nullptr || (V::value_norm && n > queries), is_query || (is_key && !V::shares), factor, lane);
        u8 *cache = (u8 *)job.key(s, position / TILE_POSITIONS, position % TILE_POSITIONS) + (is_key ? 0 : job.values(kv));
#if KV_Q8
        if (!is_query) {
            float *all = (float *)(s->scratchpad + (is_key ? D::UNROUNDED : D::UNROUNDED + D::HD * 4));
            x.save(all, v, lane);
            __syncwarp();
            u8 *rounded = s->scratchpad + (is_key ? D::KEY : D::VALUE);
            store_rounded<D::HD>(all, rounded, !V::shares && job.query_group() == 0 ? cache : nullptr, lane);
            __syncwarp();
            if (publishes) {
                // Rounding these values again gives the same bits.
                for (u32 i = 0; i < D::HD / 32; i++)
                    publish(to_share(n) + i * 32 + lane, __half2float(*(const __half *)(rounded + i * 34)) * (float)(i8)rounded[i * 34 + 2 + lane], shared_tag);
            }
            continue;
        }
#endif
#pragma unroll
        for (u32 i = 0; i < X::EACH; i++) {
            u32 unit = lane + 32 * i;
            if (X::UNITS % 32 && unit >= X::UNITS) break;
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                u32 high, low, at = X::place(unit, h) * 2;
                pack_both(v[i][h][0], v[i][h][1], high, low);
                if (is_query) {
                    *(uint2 *)(s->scratchpad + n * D::ROW + at * 2) = make_uint2(high, low);
                } else {
                    *(u32 *)(s->scratchpad + (is_key ? D::KEY : D::VALUE) + at) = high;
                    // One of the jobs that share a head writes.
                    if (!V::shares && job.query_group() == 0) *(u32 *)(cache + at) = high;
                    if (publishes) {
                        float2 pair = __half22float2(*(const __half2 *)&high);
                        publish(to_share(n) + X::place(unit, h), pair.x, shared_tag);
                        publish(to_share(n) + X::place(unit, h) + 1, pair.y, shared_tag);
                    }
                }
            }
        }
    }
}

// Adds up the scores that the warps of a team have, each for its dimensions. All warps get the same bits. Sets `half` 0 and 1 are used in
// turn, so that no warp overwrites what another one still reads.
template <class V> __device__ __forceinline__ void add_scores(Shared *s, float (&score)[2][2], u32 warp, u32 half, u32 lane) {
    using D = Scratchpad<V>;
    float4 *all = (float4 *)(s->scratchpad + D::SCORES) + half * (WARPS * 32) + lane;
    all[warp * 32] = make_float4(score[0][0], score[0][1], score[1][0], score[1][1]);
    constexpr u32 FIRST_BARRIER = 3; // after those of the block
    bar_sync<D::TEAM * 32>(FIRST_BARRIER + D::team(warp));
    float4 sum = all[D::team(warp) * D::TEAM * 32];
#pragma unroll
    for (u32 i = 1; i < D::TEAM; i++) {
        float4 more = all[(D::team(warp) * D::TEAM + i) * 32];
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    score[0][0] = sum.x, score[0][1] = sum.y, score[1][0] = sum.z, score[1][1] = sum.w;
}

// Scores of query g at positions 8h + 2t, 8h + 2t + 1 of a tile. Positions outside of the split get minus infinity.
template <class V>
__device__ __forceinline__ void compute_scores(Shared *s, const Job<V> &job, const Keys<V> &k, u32 tile, float (&score)[2][2], u32 position, u32 warp, u32 half, u32 g, u32 t) {
    using D = Scratchpad<V>;
    // Two independent sums each, because a product waits for the previous one.
    float c[2][2][4];
#pragma unroll
    for (u32 i = 0; i < 16; i++) c[i / 8][i / 4 % 2][i % 4] = 0.0f;
    // Rows beyond the last query are undefined; their results are dropped.
    const uint4 *queries = (const uint4 *)(s->scratchpad + g * D::ROW) + (D::first_chunk(warp) + t) * 2;
#pragma unroll
    for (u32 i = 0; i < D::C32; i++) {
        bool there = i * 32 + t * 8 < D::DIMS;
        uint4 x = there ? anything() : make_uint4(0, 0, 0, 0), y = there ? anything() : make_uint4(0, 0, 0, 0);
        if (g < job.queries() && there) {
            x = queries[i * 8];
            y = queries[i * 8 + 1];
        }
        u32 a[2][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}};
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint4 b = widened(k.part[h][i]);
            mma_f16(c[h][0], a[0], b.x, b.y);
            mma_f16(c[h][1], a[1], b.z, b.w);
        }
    }
    auto own = [&](u32 h, u32 i) { return (c[h][0][i] + c[h][0][i + 2]) + (c[h][1][i] + c[h][1][i + 2]); };
    if constexpr (D::TEAM > 1) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) score[i / 2][i % 2] = own(i / 2, i % 2);
        add_scores<V>(s, score, warp, half, g * 4 + t);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float v = D::TEAM > 1 ? score[h][i] : own(h, i);
            if constexpr (V::softcap != 0.0f) v = V::softcap * LOG2E * tanhf(v / V::softcap);
            score[h][i] = job.has(tile * TILE_POSITIONS + h * 8 + t * 2 + i, position) ? v : NEVER;
        }
}

// The largest score of query g, over four lanes.
__device__ __forceinline__ float largest_of(float most, const float (&score)[2][2]) {
    return fmaxf(fmaxf(most, fmaxf(score[0][0], score[0][1])), fmaxf(score[1][0], score[1][1]));
}

__device__ __forceinline__ float largest_of_four(float most) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}

// The weights of a tile for query g, as the product with the values needs them. Returns their sum.
__device__ __forceinline__ float softmax_weights(const float (&score)[2][2], float largest, SoftmaxWeights &weights) {
    float sum = 0.0f;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float a = power(score[h][0] - largest), b = power(score[h][1] - largest);
        pack_both(a, b, weights.high[h], weights.low[h]);
        sum += a + b;
    }
    return sum;
}

// A warp's tiles. The first one is in flight already; the next is requested when one has been used. With HAS_CURRENT the
// scratchpad has this turn's key and value.
template <class V, bool HAS_CURRENT>
__device__ __forceinline__ void attend_tiles(Shared *s, const Kv &kv, const Job<V> &job, u32 position, Keys<V> &k, Values<V> &v, u32 tile, u32 warp, u32 lane) {
    using D = Scratchpad<V>;
    OutputSums<V> sums;
    sums.begin();
    u32 chunk = D::first_chunk(warp);
    u32 half = 0;
#pragma unroll 1
    for (bool more = tile * TILE_POSITIONS < job.to; more; half ^= 1) {
        // Otherwise the compiler keeps values derived from it in registers.
        lane = opaque(lane);
        u32 g = lane / 4, t = lane % 4;
        if (HAS_CURRENT && tile == position / TILE_POSITIONS) {
            k.insert_current(s, position % TILE_POSITIONS, chunk, g, t);
            v.insert_current(s, position % TILE_POSITIONS, chunk, g, t);
        }
        float score[2][2];
        compute_scores(s, job, k, tile, score, position, warp, half, g, t);
        float most = largest_of_four(largest_of(sums.largest, score));
        if (tile < job.begin + D::TEAMS) sums.largest = most;
        else if (__any_sync(~0u, most > sums.largest)) sums.rescale(most, t);
        SoftmaxWeights weights;
        sums.total += softmax_weights(score, sums.largest, weights);
        sums.add(v, weights);
        tile += D::TEAMS;
        more = tile * TILE_POSITIONS < job.to;
        if (more) {
            u32 cached = HAS_CURRENT ? position : job.to;
            k.fetch(s, job, tile, cached, position, chunk, g, t);
            v.fetch(s, kv, job, tile, cached, position, chunk, g, t);
        }
    }
    sums.save(s, job, warp, lane / 4, lane % 4);
    consumers_meet();
}

// All of a job except the publishing of its result. The first tiles of all warps are requested before the queries arrive.
template <class V>
__device__ __forceinline__ void attend_job(WaitContext &w, Shared *s, const Kv &kv, const float *exchange, const Instruction &in, u32 turn, const Job<V> &job, u32 position) {
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32, chunk = Scratchpad<V>::first_chunk(warp), tile = job.begin + Scratchpad<V>::team(warp);
    Keys<V> k;
    Values<V> v;
    k.fetch(s, job, tile, position, position, chunk, lane / 4, lane % 4);
    v.fetch(s, kv, job, tile, position, position, chunk, lane / 4, lane % 4);
    load_qkv<V>(w, s, kv, exchange + in.input, in, tag_of(turn, in.reads_per_turn, in.reads), job, position, s->angles, job.has_current(position) ? 2 : 0, warp, lane);
    consumers_meet();
    STAMP(1);
    attend_tiles<V, true>(s, kv, job, position, k, v, tile, warp, lane);
}

// A job's warps.
struct JobWarps {
    u32 first, count;
};
constexpr JobWarps ALL_WARPS = {0, WARPS};

// The merged result of a job's warps (or teams) for four dimensions of query n; and, for all dimensions, the largest score and the sum of weights.
// Other warps count as warps without a tile, which change no bit.
template <class V> __device__ __forceinline__ float4 merge_warps(const Shared *s, JobWarps warps, u32 n, u32 d, float &largest, float &total) {
    using D = Scratchpad<V>;
    const float4 *sides = (const float4 *)((const float *)(s->scratchpad + D::WARP_STATS) + n * 2 * WARPS);
    const float *sums = (const float *)(s->scratchpad + D::WARP_SUMS) + n * D::SUMS_STRIDE + d;
    float most[WARPS], all[WARPS];
#pragma unroll
    for (u32 i = 0; i < (D::TEAMS + 3) / 4; i++) {
        float4 m = sides[i], a = sides[WARPS / 4 + i];
        most[4 * i] = m.x, most[4 * i + 1] = m.y, most[4 * i + 2] = m.z, most[4 * i + 3] = m.w;
        all[4 * i] = a.x, all[4 * i + 1] = a.y, all[4 * i + 2] = a.z, all[4 * i + 3] = a.w;
    }
    largest = LOWEST_SCORE;
#pragma unroll
    for (u32 i = 0; i < D::TEAMS; i++) {
        if (i - warps.first >= warps.count) most[i] = LOWEST_SCORE;
        largest = fmaxf(largest, most[i]);
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < D::TEAMS; i++) {
        float by = power(most[i] - largest);
        float4 x = *(const float4 *)(sums + i * D::Q * D::SUMS_STRIDE);
        sum.x = fmaf(by, x.x, sum.x), sum.y = fmaf(by, x.y, sum.y), sum.z = fmaf(by, x.z, sum.z), sum.w = fmaf(by, x.w, sum.w);
        total = fmaf(by, all[i], total);
    }
    return sum;
}

// Publishes four results of attention, from `column` on, multiplied by a factor and, if V::gated, by the sigmoids of their gates. `gates`
// was loaded by request_gates().
template <class V>
__device__ __forceinline__ void publish_result(WaitContext &w, float *exchange, const Instruction &in, u32 turn, u32 column, float4 v, float factor, uint4 gates) {
    if constexpr (V::gated) {
        const float *from = exchange + in.input + V::gate_at + column;
        u32 tag = tag_of(turn, in.reads_per_turn, in.reads);
        WaitState wait;
        while (!fresh(gates, tag) && keep_waiting(w, wait, PLACE_INPUT)) gates = peek4(from);
        v.x *= sigmoid(value(gates.x)), v.y *= sigmoid(value(gates.y)), v.z *= sigmoid(value(gates.z)), v.w *= sigmoid(value(gates.w));
    }
    publish4_to<V::exchanged>(w.s, exchange + in.output + column, v, factor, tag_of(turn, in.writes_per_turn, in.writes));
}

// Starts loading the gates of four results. They are part of the input.
template <class V> __device__ __forceinline__ uint4 request_gates(const float *exchange, const Instruction &in, u32 column) {
    if constexpr (V::gated) return peek4(exchange + in.input + V::gate_at + column);
    return make_uint4(0, 0, 0, 0);
}

// The number of splits of a context. A longer context never has fewer, so every split is written by each instruction or by
// none, and never holds a result of an older one. Nor are there more splits than tiles.
template <class V> __device__ __forceinline__ u32 split_count(u32 count, u32 most) {
    if (V::splits == 1 || count <= V::max_unsplit) return 1;
    return min(most, max(2u, (count + V::split_positions - 1) / V::split_positions));
}

// The tag of the splits' results, which are counted apart: by the instructions of this kind in a turn.
__device__ __forceinline__ u32 splits_tag(const Instruction &in, u32 turn) { return tag_of(turn, in.flags >> 16, in.flags & 0xffff); }

// What a head's sink adds to its sum of weights, which are relative to the score `largest`.
__device__ __forceinline__ float sink_of(const Instruction &in, u32 head, float largest) {
    return power(__ldg((const float *)in.weight + head) * LOG2E - largest);
}

// Publishes a job's result: the output, or this split's part of it.
template <class V>
__device__ __forceinline__ void publish_job(WaitContext &w, Shared *s, const Job<V> &job, JobWarps warps, float *exchange, const Instruction &in, u32 turn, u32 splits, bool stalled) {
    using D = Scratchpad<V>;
    for (u32 i = opaque(threadIdx.x); i < job.queries() * (D::HD / 4); i += CONSUMERS) {
        u32 n = i / (D::HD / 4), d = i % (D::HD / 4) * 4;
        u32 column = (job.query() + n) * D::HD + d;
        uint4 gates = request_gates<V>(exchange, in, column);
        float largest, total;
        float4 sum = merge_warps<V>(s, warps, n, d, largest, total);
        if (stalled) continue;
        if (splits == 1) {
            if constexpr (V::sinks) total += sink_of(in, job.query() + n, largest);
            publish_result<V>(w, exchange, in, turn, column, sum, __fdividef(1.0f, total), gates);
            continue;
        }
        float *mine = exchange + V::splits_start + ((job.query() + n) * V::splits + job.split()) * D::SUMS_STRIDE;
        u32 tag = splits_tag(in, turn);
        publish4_to<false>(s, mine + d, sum, 1.0f, tag);
        if (d == 0) {
            publish(mine + D::HD, largest, tag);
            publish(mine + D::HD + 1, total, tag);
        }
    }
}

// Merges the splits, four dimensions of a query at a time: a lane has one split or two. `turned` rotates the warps' places. Returns false
// if this block has no part.
template <class V> __device__ __forceinline__ bool merge_splits(WaitContext &w, float *exchange, const Instruction &in, u32 turn, u32 splits, bool stalled, u32 turned) {
    using D = Scratchpad<V>;
    constexpr u32 COLUMNS = V::heads * D::HD / 4, EACH = (V::splits + 31) / 32;
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32, tag = splits_tag(in, turn);
    // Lanes per column: a power of two.
    u32 bits = min(5, 32 - __clz(splits - 1)), lanes = 1 << bits, at_once = 32 >> bits, split = lane & (lanes - 1);
    u32 first = ((warp + turned) % WARPS * gridDim.x + opaque(blockIdx.x)) * at_once;
    if (first >= COLUMNS) return false;
    for (; first < COLUMNS; first += gridDim.x * WARPS * at_once) {
        u32 mine = first + (lane >> bits), column = min(mine, COLUMNS - 1), query = column / (D::HD / 4), d = column % (D::HD / 4) * 4;
        const float *from = exchange + V::splits_start + (u64)query * V::splits * D::SUMS_STRIDE;
        uint4 got[EACH];
        uint2 side[EACH];
        auto load_split = [&](u32 i) {
            const float *at = from + min(split + 32 * i, splits - 1) * D::SUMS_STRIDE;
            got[i] = load_relaxed4(at + d);
            side[i] = load_relaxed2(at + D::HD);
        };
#pragma unroll
        for (u32 i = 0; i < EACH; i++) load_split(i);
        uint4 gates = request_gates<V>(exchange, in, query * D::HD + d);
        WaitState wait;
        for (;;) {
            bool all = true;
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (!fresh(got[i], tag) || !fresh(side[i], tag)) {
                    all = false;
                    load_split(i);
                }
            if (all || !keep_waiting(w, wait, PLACE_INPUT)) break;
        }
        __syncwarp();
        float most = LOWEST_SCORE;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (split + 32 * i < splits) most = fmaxf(most, value(side[i].x));
        for (u32 o = lanes / 2; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        float v[5] = {};
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (split + 32 * i >= splits) continue;
            float by = power(value(side[i].x) - most);
            v[0] = fmaf(by, value(got[i].x), v[0]);
            v[1] = fmaf(by, value(got[i].y), v[1]);
            v[2] = fmaf(by, value(got[i].z), v[2]);
            v[3] = fmaf(by, value(got[i].w), v[3]);
            v[4] = fmaf(by, value(side[i].y), v[4]);
        }
        for (u32 o = lanes / 2; o > 0; o /= 2)
#pragma unroll
            for (u32 i = 0; i < 5; i++) v[i] += __shfl_xor_sync(~0u, v[i], o);
        if constexpr (V::sinks) v[4] += sink_of(in, query, most);
        if (split == 0 && mine < COLUMNS && !stalled)
            publish_result<V>(w, exchange, in, turn, query * D::HD + d, make_float4(v[0], v[1], v[2], v[3]), __fdividef(1.0f, v[4]), gates);
    }
    return true;
}

template <class V>
__device__ __forceinline__ void attention(WaitContext &w, Shared *s, Kv kv, float *exchange, const Instruction &in, u32 turn, u32 position, bool stalled) {
    constexpr u32 JOBS = Job<V>::JOBS;
    kv.layer = in.layer;
    STAMP(0);
    // Otherwise the compiler keeps values derived from these in registers from layer to layer.
    position = opaque(position);
    u32 block = opaque(blockIdx.x), splits = split_count<V>(position + 1 - Job<V>::first(position), V::splits);
    if (threadIdx.x == 0) s->signals.awaiting = AWAITS_ATTENTION;
    for (u32 number = block; number < JOBS * splits; number += gridDim.x) {
        Job<V> job(kv, number, splits, position);
        attend_job<V>(w, s, kv, exchange, in, turn, job, position);
        publish_job<V>(w, s, job, ALL_WARPS, exchange, in, turn, splits, stalled);
    }
    STAMP(2);
    bool had_part = block < JOBS * splits;
    if (splits > 1) had_part |= merge_splits<V>(w, exchange, in, turn, splits, stalled, 0);
    // The scratchpad belongs to the next instruction.
    if (block < JOBS * splits) consumers_meet();
    if (had_part) STAMP(3);
}
