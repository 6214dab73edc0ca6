// The exchange: how blocks pass activations to each other without barriers. A vector that commands write is stored once in device
// memory, and the two lowest bits of every float are a tag that says which write of the vector it belongs to. A reader loads stale
// floats again.
//
// The writes of a vector are numbered through all turns of a launch. Their tags are 1, 2, 3, 1, ...; 0 means never written. A vector
// is overwritten only when every block has read it: each block has rows in every product, and every product needs all of its input.
// So a block that writes has seen all others finish the read before.
#pragma once
#include "persistent/block.cuh"

__device__ __forceinline__ u32 tag_of(u32 turn, u32 per_turn, u32 nth) { return 1 + (turn * per_turn + nth - 1) % 3; }

__device__ __forceinline__ u32 tagged(float v, u32 tag) { return ((__float_as_uint(v) + 2) & ~3u) | tag; }

__device__ __forceinline__ void publish(float *to, float v, u32 tag) { store_relaxed(to, tagged(v, tag)); }

// ---- ranks ----
//
// A vector of which every rank has a part is whole in the memory of each: who writes a float writes it everywhere. It is overwritten by the
// same rule as on one GPU, because every block needs the results of all ranks.

#if RANKS > 1
// A place in the memory of the r-th other rank.
template <class T> __device__ __forceinline__ T *elsewhere(T *at, u64 away) { return (T *)((u64)at + away); }
#endif

// FAR: for all ranks.
template <bool FAR> __device__ __forceinline__ void publish_to(const Shared *s, float *to, float v, u32 tag) {
    publish(to, v, tag);
#if RANKS > 1
    if constexpr (FAR)
#pragma unroll
        for (u32 r = 0; r < RANKS - 1; r++) store_relaxed_system(elsewhere(to, s->away[r]), tagged(v, tag));
#endif
}

template <bool FAR> __device__ __forceinline__ void publish4_to(const Shared *s, float *to, float4 v, float factor, u32 tag) {
    const uint4 bits = make_uint4(tagged(v.x * factor, tag), tagged(v.y * factor, tag), tagged(v.z * factor, tag), tagged(v.w * factor, tag));
    store_relaxed4(to, bits);
#if RANKS > 1
    if constexpr (FAR)
#pragma unroll
        for (u32 r = 0; r < RANKS - 1; r++) store_relaxed4_system(elsewhere(to, s->away[r]), bits);
#endif
}

__device__ __forceinline__ u32 peek(const float *from) { return load_relaxed(from); }
__device__ __forceinline__ uint4 peek4(const float *from) { return load_relaxed4(from); }

__device__ __forceinline__ bool fresh(u32 v, u32 tag) { return (v & 3) == tag; }
__device__ __forceinline__ bool fresh(uint2 v, u32 tag) { return (((v.x ^ tag) | (v.y ^ tag)) & 3) == 0; }
__device__ __forceinline__ bool fresh(uint4 v, u32 tag) { return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 3) == 0; }
__device__ __forceinline__ float value(u32 v) { return __uint_as_float(v & ~3u); }

// Loads the quads (four floats) of `from` that belong to this lane: lane, lane + LANES, ... below `quads`. Each LANES lanes may have
// another `from`.
template <u32 ROUNDS, u32 LANES = 32> __device__ __forceinline__ void request(const float *from, u32 tag, u32 lane, u32 quads, uint4 (&got)[ROUNDS]) {
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        got[r] = make_uint4(tag, tag, tag, tag);
        if (lane + LANES * r < quads) got[r] = peek4(from + 4 * (lane + LANES * r));
    }
}

// Waits until all quads of a `request` are fresh. First the warp votes; only if a lane has a stale quad does any lane load again.
// Without the vote a token takes 14 % longer (docs/architecture/experiments.md).
template <u32 ROUNDS, u32 LANES = 32> __device__ __forceinline__ void await_fresh(WaitContext &w, const float *from, u32 tag, u32 lane, uint4 (&got)[ROUNDS]) {
    bool there = true;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) there &= fresh(got[r], tag);
    if (__all_sync(~0u, there)) return;
    WaitState wait;
    for (;;) {
        bool all = true;
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++)
            if (!fresh(got[r], tag)) {
                all = false;
                got[r] = peek4(from + 4 * (lane + LANES * r));
            }
        if (all || !keep_waiting(w, wait, PLACE_INPUT)) break;
    }
    __syncwarp();
}

// Requests quads and waits for them. The first load is delayed until the other blocks can have written them, because polling
// competes with useful loads.
template <u32 ROUNDS, u32 LANES = 32> __device__ __forceinline__ void receive(WaitContext &w, const float *from, u32 tag, u32 lane, u32 quads, uint4 (&got)[ROUNDS]) {
    wait_ticks(w.product_end, w.poll_delay);
    request<ROUNDS, LANES>(from, tag, lane, quads, got);
    await_fresh<ROUNDS, LANES>(w, from, tag, lane, got);
}

// Waits until a float that was loaded as `got` is fresh. Lanes of a warp may wait for different floats.
__device__ __forceinline__ float await_value(WaitContext &w, const float *from, u32 got, u32 tag) {
    WaitState wait;
    while (!fresh(got, tag) && keep_waiting(w, wait, PLACE_INPUT)) got = peek(from);
    return value(got);
}

// ---- barrier of all blocks ----

// What this block wrote before becomes visible to the blocks that meet it.
__device__ __forceinline__ void arrive(u32 *counter) {
    __threadfence();
    count_release(counter);
}

__device__ __forceinline__ void wait_count(WaitContext &w, const u32 *counter, u32 wanted) {
    WaitState wait;
    while (load_acquire(counter) < wanted && keep_waiting(w, wait, PLACE_TOKEN)) {
    }
}

// The same for the blocks of all ranks.
__device__ __forceinline__ void arrive_everywhere(const Shared *s, u32 *counter) {
#if RANKS > 1
    __threadfence_system();
    count_release_system(counter);
#pragma unroll
    for (u32 r = 0; r < RANKS - 1; r++) count_release_system(elsewhere(counter, s->away[r]));
#else
    arrive(counter);
#endif
}

// Waits until all blocks of all ranks have arrived `times` times.
__device__ __forceinline__ void wait_for_all(WaitContext &w, const u32 *counter, u32 times) {
#if RANKS > 1
    WaitState wait;
    while (load_acquire_system(counter) < RANKS * gridDim.x * times && keep_waiting(w, wait, PLACE_RANKS)) {
    }
#else
    wait_count(w, counter, gridDim.x * times);
#endif
}

#if RANKS > 1
// Waits until every rank has begun this launch: its memory is then as a launch finds it. Another rank's thread may be late, so the patience is
// that of exchange.cu.
__device__ __forceinline__ void await_ranks(WaitContext w, const RanksArgs &a) {
    w.patience *= 10;
    if (blockIdx.x == 0)
        for (u32 r = 0; r < RANKS - 1; r++) store_release_system(elsewhere(a.begun + a.rank, a.away[r]), a.launch);
    WaitState wait;
    for (u32 r = 0; r < RANKS; r++)
        while (r != a.rank && load_acquire_system(a.begun + r) < a.launch && keep_waiting(w, wait, PLACE_RANKS)) {
        }
}
#endif
