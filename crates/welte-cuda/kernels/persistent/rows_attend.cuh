// Attention of several rows of a step. Rows of one sequence attend to each other: so all keys and values are first written to the
// cache, then all blocks meet, and from then on every key is read from the cache. The rest is the code for one row (attend.cuh).
// The jobs of all rows are numbered one after the other. The splits of a context depend on its length alone, as for one row.
#pragma once
#include "persistent/attend.cuh"
#include "persistent/rows.cuh"

// Writes the keys and values of all rows, after norm and rope, to the cache: a vector per warp.
template <class V> __device__ __forceinline__ void append(WaitContext &w, Shared *s, const Kv &kv, const RowsArgs &a, const Instruction &in) {
    using X = QkvVector<V>;
    constexpr u32 VECTORS = 2 * V::kv_heads;
    static_assert(V::team == 1 && !V::shares && !V::value_norm, "what only chains can do");
    u32 tid = opaque(threadIdx.x), lane = tid % 32, tag = tag_of(0, in.reads_per_turn, in.reads);
#pragma unroll 1
    for (u32 n = tid / 32 * gridDim.x + opaque(blockIdx.x); n < s->live * VECTORS; n += gridDim.x * WARPS) {
        u32 row = n / VECTORS, nth = n % VECTORS, part = nth / V::kv_heads;
        const float *from = exchange_of(a, row) + in.input + (V::heads + nth) * V::head_dim, *norm = part ? nullptr : (const float *)in.vectors[1];
        X x;
        x.request(from, norm, lane);
        x.receive(w, from, tag, lane);
        float v[X::EACH][2][2];
        x.finish(s->angles + row * ANGLES, v, norm != nullptr, part == 0, 1.0f, lane);
        const Row at = {0, s->rows[row].position, s->rows[row].slot};
        u8 *cache = kv_at(kv, part, nth % V::kv_heads, at, Scratchpad<V>::CACHED);
#if KV_Q8
        // Every warp has passed the products before, so their inputs are not read any more.
        float *all = (float *)(s->scratchpad + Scratchpad<V>::WARP_SUMS) + tid / 32 * Scratchpad<V>::Q * Scratchpad<V>::SUMS_STRIDE;
        x.save(all, v, lane);
        __syncwarp();
        store_rounded<V::head_dim>(all, cache, nullptr, lane);
        __syncwarp();
        continue;
#endif
#pragma unroll
        for (u32 i = 0; i < X::EACH; i++) {
            if (X::UNITS % 32 && lane + 32 * i >= X::UNITS) break;
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                u32 high, low;
                pack_both(v[i][h][0], v[i][h][1], high, low);
                *(u32 *)(cache + X::place(lane + 32 * i, h) * 2) = high;
            }
        }
    }
}

// How many splits of a row a block attends to at once. A split has no more tiles than its warps, and each warp the tile that it has where
// the split has all warps.
template <class V> __device__ __forceinline__ u32 splits_at_once(u32 position, u32 splits) {
    u32 tiles = position / TILE_POSITIONS + 1 - Job<V>::first(position) / TILE_POSITIONS, most = (tiles + splits - 1) / splits;
    return splits == 1 ? 1 : most <= WARPS / 4 ? 4 : most <= WARPS / 2 ? 2 : 1;
}

// All of the jobs of one head and of some splits except the publishing of their results. `job` is this warp's.
template <class V>
__device__ __forceinline__ void attend_row_jobs(WaitContext &w, Shared *s, const Kv &kv, const RowsArgs &a, const Instruction &in, const Job<V> &job, u32 nth, u32 row) {
    u32 tid = opaque(threadIdx.x), lane = tid % 32, warp = tid / 32, tile = job.begin + nth, position = s->rows[row].position;
    u32 slot = s->rows[row].slot;
    if (s->slot != slot) load_pages(s, a.caches, slot, tid, CONSUMERS);
    load_qkv<V>(w, s, kv, exchange_of(a, row) + in.input, in, tag_of(0, in.reads_per_turn, in.reads), job, position, s->angles + row * ANGLES, 0, warp, lane);
    if (tid == 0) wait_count(w, &a.sync->arrived, s->meetings * gridDim.x);
    consumers_meet();
    if (tid == 0) s->slot = slot;
    Keys<V> k;
    Values<V> v;
    k.fetch(s, job, tile, job.to, position, 0, lane / 4, lane % 4);
    v.fetch(s, kv, job, tile, job.to, position, 0, lane / 4, lane % 4);
    attend_tiles<V, false>(s, kv, job, position, k, v, tile, warp, lane);
}

template <class V> __device__ __forceinline__ void attend_rows(WaitContext &w, Shared *s, const RowsArgs &a, const Instruction &in) {
    constexpr u32 JOBS = Job<V>::JOBS;
    Kv kv = a.caches[V::cache];
    kv.layer = in.layer;
    append<V>(w, s, kv, a, in);
    consumers_meet();
    if (threadIdx.x == 0) {
        s->meetings++;
        arrive(&a.sync->arrived);
    }
    u32 number = opaque(blockIdx.x);
    bool had_part = false;
    auto splits = [&](u32 row) { return split_count<V>(s->rows[row].position + 1 - Job<V>::first(s->rows[row].position), V::splits); };
#pragma unroll 1
    for (u32 row = 0; row < s->live; row++) {
        u32 position = s->rows[row].position, parts = splits(row), at_once = splits_at_once<V>(position, parts);
        u32 groups = (parts + at_once - 1) / at_once, warps = WARPS / at_once, warp = opaque(threadIdx.x) / 32;
#pragma unroll 1
        for (; number < JOBS * groups; number += gridDim.x) {
            // Beyond the last split a warp has no tile.
            u32 head = number % JOBS, split = number / JOBS * at_once;
            Job<V> mine(kv, (split + warp / warps) * JOBS + head, parts, position);
            attend_row_jobs<V>(w, s, kv, a, in, mine, warp % warps, row);
#pragma unroll 1
            for (u32 i = 0; i < at_once && split + i < parts; i++) {
                Job<V> job(kv, (split + i) * JOBS + head, parts, position);
                publish_job<V>(w, s, job, {i * warps, warps}, exchange_of(a, row), in, 0, parts, is_stalled(a));
            }
            had_part = true;
        }
        number -= JOBS * groups;
    }
    if (V::splits > 1)
#pragma unroll 1
        for (u32 row = 0; row < s->live; row++)
            if (u32 parts = splits(row); parts > 1) merge_splits<V>(w, exchange_of(a, row), in, 0, parts, is_stalled(a), row);
    // The scratchpad belongs to the next instruction.
    if (had_part) consumers_meet();
}
