// How a product is divided within a block. Each consumer warp owns an eighth of every row, its *slice*, for all rows of the block.
// So a warp waits only for its slice of the input, and multiplies as soon as that has arrived.
//
// Within a warp V::lanes neighbouring lanes share a row's slice. A lane takes every V::lanes-th unit of the slice and keeps the
// activations for it in registers, for all rows. A slot of the ring has V::rows rows. Where gate and up are multiplied together,
// as many rows of `up` follow, so a slot has LINES lines.
#pragma once
#include "persistent/stream.cuh"

template <class V> struct Partition {
    using F = typename V::Format;
    static constexpr u32 UNIT = F::BLOCKS ? 32 : 8; // neighbouring elements that a lane takes at a time
    static constexpr u32 UNITS = V::k / UNIT;
    static constexpr u32 EACH = (UNITS + WARPS - 1) / WARPS; // of a slice; the last warps may have fewer
    static constexpr bool EVEN = UNITS % WARPS == 0;
    static constexpr u32 LANES = V::lanes;
    static constexpr u32 ROUNDS = (EACH + LANES - 1) / LANES;
    static constexpr u32 ROWS = 32 / LANES; // that a warp multiplies at a time
    static constexpr u32 LINES = Slot<V>::SETS * V::rows;
    static constexpr u32 PASSES = (LINES + ROWS - 1) / ROWS; // passes over a slot
    static constexpr u32 AT_ONCE = PASSES % 4 == 0 && ROUNDS <= 2 && LANES >= 4 ? 4 : PASSES % 2 == 0 ? 2 : 1;
    static_assert(V::k % UNIT == 0, "rows are whole units");
    static_assert(LANES >= 2 && LANES <= 32, "at least as many lanes as passes at once");
    static constexpr u32 BYTES = EACH * (F::BLOCKS ? 48 : 32); // of a staged slice

    // The number of units in the slice of warp `warp`.
    __device__ static __forceinline__ u32 units(u32 warp) {
        if constexpr (EVEN) return EACH;
        u32 first = warp * EACH;
        return first < UNITS ? min(EACH, UNITS - first) : 0;
    }
};
