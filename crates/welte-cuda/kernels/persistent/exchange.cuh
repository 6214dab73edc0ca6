// How blocks hand activations to each other without barriers: the vectors that commands write lie once in device memory,
// and the two lowest bits of every float say which write of the vector it is from. A reader asks again for what is stale.
//
// Writes of a vector are numbered on and on over the turns of a launch; the tag is 1, 2, 3, 1, ... (0: never written). A
// vector is overwritten only when everybody has read it: each block takes a part in every product, and every product needs
// all of its input, so a block that writes has seen all others pass the reading before.
#pragma once
#include "persistent/block.cuh"

__device__ __forceinline__ u32 tag_of(u32 turn, u32 per_turn, u32 nth) { return 1 + (turn * per_turn + nth - 1) % 3; }

__device__ __forceinline__ u32 tagged(float v, u32 tag) { return ((__float_as_uint(v) + 2) & ~3u) | tag; }

__device__ __forceinline__ void publish(float *to, float v, u32 tag) { store_relaxed(to, tagged(v, tag)); }

__device__ __forceinline__ u32 glance(const float *from) { return load_relaxed(from); }
__device__ __forceinline__ uint4 glance4(const float *from) { return load_relaxed4(from); }

__device__ __forceinline__ bool fresh(u32 v, u32 tag) { return (v & 3) == tag; }
__device__ __forceinline__ bool fresh(uint2 v, u32 tag) { return (((v.x ^ tag) | (v.y ^ tag)) & 3) == 0; }
__device__ __forceinline__ bool fresh(uint4 v, u32 tag) { return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 3) == 0; }
__device__ __forceinline__ float value(u32 v) { return __uint_as_float(v & ~3u); }

// The quads (four floats) of `from` that fall to this lane: lane, lane + 32, ... below `quads`.
template <u32 ROUNDS> __device__ __forceinline__ void ask(const float *from, u32 tag, u32 lane, u32 quads, uint4 (&got)[ROUNDS]) {
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        got[r] = make_uint4(tag, tag, tag, tag);
        if (lane + 32 * r < quads) got[r] = glance4(from + 4 * (lane + 32 * r));
    }
}

// They were asked for; what is stale is asked for again. (That the warp agrees that nothing is, before any lane asks again, is worth
// a seventh of a token: docs/persistent.md.)
template <u32 ROUNDS> __device__ __forceinline__ void complete(Watch &w, const float *from, u32 tag, u32 lane, uint4 (&got)[ROUNDS]) {
    bool there = true;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) there &= fresh(got[r], tag);
    if (__all_sync(~0u, there)) return;
    Wait wait;
    for (;;) {
        bool all = true;
#pragma unroll
        for (u32 r = 0; r < ROUNDS; r++)
            if (!fresh(got[r], tag)) {
                all = false;
                got[r] = glance4(from + 4 * (lane + 32 * r));
            }
        if (all || !again(w, wait, PLACE_INPUT)) break;
    }
    __syncwarp();
}

// The same from the beginning, but not before the others can have come so far: to ask again and again crowds the way of what is
// asked for, and that of the weights.
template <u32 ROUNDS> __device__ __forceinline__ void receive(Watch &w, const float *from, u32 tag, u32 lane, u32 quads, uint4 (&got)[ROUNDS]) {
    wait_ticks(w.since, w.delay);
    ask(from, tag, lane, quads, got);
    complete(w, from, tag, lane, got);
}

// ---- meeting ----

// Everything that this block wrote comes before what others do after they have met it.
__device__ __forceinline__ void arrive(u32 *counter) {
    __threadfence();
    count_release(counter);
}

__device__ __forceinline__ void wait_count(Watch &w, const u32 *counter, u32 wanted) {
    Wait wait;
    while (load_acquire(counter) < wanted && again(w, wait, PLACE_TOKEN)) {
    }
}
