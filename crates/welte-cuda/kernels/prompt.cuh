// Shared by the kernels of flash attention over pages: the rows of a block, which may belong to different sequences.
#pragma once
#include "attention.cuh"
#include "flash.cuh"

constexpr u32 NO_SLOT = 0xffffffffu;

// Where the rows of a block are, and the last positions that they attend to.
template <u32 ROWS> struct Places {
    u32 slots[ROWS], positions[ROWS], reaches[ROWS];

    // The positions that a row attends to, of one slot.
    __device__ __forceinline__ void limits(const AttentionArgs &a, u32 row, u32 slot, int &low, int &high) const {
        bool mine = slots[row] == slot;
        low = mine ? (int)first_position(a, positions[row]) : 0x7fffffff;
        high = mine ? (int)reaches[row] : -1;
    }
};

// Loads the places of a block's rows, and their queries as f16. Rows that are not live get no slot, and zeros.
template <u32 ROWS, u32 THREADS>
__device__ __forceinline__ void load_rows(const AttentionArgs &a, u32 first, u32 live, u32 head, Places<ROWS> &places, u8 *queries) {
    for (u32 i = threadIdx.x; i < ROWS; i += THREADS) {
        bool there = first + i < live;
        places.slots[i] = there ? a.step->rows[first + i].slot : NO_SLOT;
        places.positions[i] = there ? a.step->rows[first + i].position : 0;
        places.reaches[i] = there ? last_position(a, a.step->rows[first + i]) : 0;
    }
    float factor = q_factor(a);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (first + row < live) {
            const float *q = a.q + (u64)(first + row) * a.q_stride + head * HEAD_DIM + chunk * 8;
            v = make_uint4(pack(q[0] * factor, q[1] * factor), pack(q[2] * factor, q[3] * factor), pack(q[4] * factor, q[5] * factor), pack(q[6] * factor, q[7] * factor));
        }
        *(uint4 *)(queries + at_chunk<ROWS>(row, chunk)) = v;
    }
}

// The positions of one sequence that the block needs.
struct Span {
    u32 slot;
    u32 low;
    u32 high;
};

// The span of the first slot from `done` on. Each warp finds it on its own.
template <u32 ROWS> __device__ __forceinline__ Span next_span(const AttentionArgs &a, const Places<ROWS> &places, u32 done) {
    u32 lane = threadIdx.x % 32;
    Span span = {NO_SLOT, NO_SLOT, 0};
    for (u32 i = lane; i < ROWS; i += 32)
        if (places.slots[i] >= done) span.slot = min(span.slot, places.slots[i]);
    span.slot = __reduce_min_sync(~0u, span.slot);
    if (span.slot == NO_SLOT) return span;
    for (u32 i = lane; i < ROWS; i += 32)
        if (places.slots[i] == span.slot) {
            span.low = min(span.low, first_position(a, places.positions[i]));
            span.high = max(span.high, places.reaches[i]);
        }
    span.low = __reduce_min_sync(~0u, span.low);
    span.high = __reduce_max_sync(~0u, span.high);
    return span;
}
