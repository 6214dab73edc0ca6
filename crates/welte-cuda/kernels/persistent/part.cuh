// How a product is shared out within a block: each consumer warp owns an eighth of every row, its *slice*, for all rows of the
// block. So a warp waits for its slice of the input alone, and multiplies as soon as that is there.
//
// Within a warp V::lanes neighbouring lanes share a row's slice; a lane takes every V::lanes-th unit of it, and keeps the
// activations that it multiplies in registers for all rows. A slot of the ring holds V::rows rows; where a gate has its `up`,
// as many rows of that follow, so that a slot has LINES of one kind.
#pragma once
#include "persistent/stream.cuh"

template <class V> struct Part {
    using F = typename V::Format;
    static constexpr u32 UNIT = F::BLOCKS ? 32 : 8; // neighbouring elements that a lane takes
    static constexpr u32 UNITS = V::k / UNIT;
    static constexpr u32 EACH = (UNITS + WARPS - 1) / WARPS; // of a warp's slice, which may end early
    static constexpr bool EVEN = UNITS % WARPS == 0;
    static constexpr u32 LANES = V::lanes;
    static constexpr u32 ROUNDS = (EACH + LANES - 1) / LANES;
    static constexpr u32 ROWS = 32 / LANES; // at a time
    static constexpr u32 LINES = Slot<V>::SETS * V::rows;
    static constexpr u32 PASSES = (LINES + ROWS - 1) / ROWS; // over a slot
    static constexpr u32 AT_ONCE = PASSES % 4 == 0 && ROUNDS <= 2 && LANES >= 4 ? 4 : PASSES % 2 == 0 ? 2 : 1;
    static_assert(V::k % UNIT == 0, "rows are whole units");
    static_assert(LANES >= 2 && LANES <= 32, "at least as many lanes as passes at once");
    static constexpr u32 BYTES = EACH * (F::BLOCKS ? 48 : 32); // of a staged slice

    // The units of warp `warp`.
    __device__ static __forceinline__ u32 units(u32 warp) {
        if constexpr (EVEN) return EACH;
        u32 first = warp * EACH;
        return first < UNITS ? min(EACH, UNITS - first) : 0;
    }
};
