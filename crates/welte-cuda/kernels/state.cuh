// The state of one head of a recurrent layer: a matrix of KEY_DIM rows. A block takes COLUMNS of its columns, for all rows of one
// slot, and keeps them in registers from row to row. So a row's bits do not depend on the number of rows.
#pragma once
#include "common.cuh"

#ifndef BY_CHANNEL
#define BY_CHANNEL 0 // 1: prompt rows have a third vector, which says how the rows of the matrix decay
#endif

constexpr u32 THREADS = 128;
constexpr u32 PARTS = 4; // threads that share a column; each has every fourth element of the key
constexpr u32 EACH = (KEY_DIM + PARTS - 1) / PARTS;
constexpr u32 COLUMNS = THREADS / PARTS;

// This thread's part of its column. `at` is the column's first element.
template <u32 N> __device__ __forceinline__ void load_column(float (&s)[N], const float *at, u32 stride, u32 part, bool there) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 k = i * PARTS + part;
        s[i] = there && k < KEY_DIM ? at[(u64)k * stride] : 0.0f;
    }
}

template <u32 N> __device__ __forceinline__ void store_column(const float (&s)[N], float *at, u32 stride, u32 part) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 k = i * PARTS + part;
        if (k < KEY_DIM) at[(u64)k * stride] = s[i];
    }
}

// ---- operands of prompt rows, copied to shared memory while the rows before are computed ----

constexpr u32 AHEAD = (KEY_DIM <= 128 ? 16 : KEY_DIM <= 256 ? 8 : 4) >> BY_CHANNEL; // rows
constexpr u32 EACH4 = (EACH + 3) / 4 * 4;   // a thread's elements of a key, in whole loads
constexpr u32 PART_FLOATS = EACH4 + 4;      // no two threads of a column access the same bank
constexpr u32 VECTOR = PARTS * PART_FLOATS; // of a key or a query: each thread's elements together

// The place of an element of a key or a query.
__device__ __forceinline__ u32 vector_place(u32 e) { return e % PARTS * PART_FLOATS + e / PARTS; }

// Four elements of this thread's part of a vector.
__device__ __forceinline__ void four_of(const float (&vector)[VECTOR], u32 part, u32 i, float (&to)[4]) {
    float4 v = *(const float4 *)&vector[part * PART_FLOATS + i];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// Chooses the next rows of a slot, at most AHEAD, of those from `seen` on. Returns their number, the same in all threads. The
// threads meet before `chosen` may be read.
__device__ __forceinline__ u32 choose_rows(const Step *step, u32 slot, u32 &seen, u32 (&chosen)[AHEAD]) {
    u32 lane = threadIdx.x % 32, count = 0;
    while (seen < step->live && count < AHEAD) {
        u32 r = seen + lane;
        u32 mine = __ballot_sync(~0u, r < step->live && step->rows[r].slot == slot);
        u32 place = count + __popc(mine & ((1u << lane) - 1));
        bool taken = (mine >> lane & 1) && place < AHEAD;
        if (threadIdx.x < 32 && taken) chosen[place] = r;
        u32 took = __ballot_sync(~0u, taken);
        // Up to the first row of this slot that has no place.
        u32 left = mine & ~took;
        seen += left ? __ffs(left) - 1 : 32;
        count += __popc(took);
    }
    return count;
}
