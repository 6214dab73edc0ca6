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

// Where a BF16 product's chunks and pieces lie in a row of weights and in the vector (tensor.cuh).
template <class V> struct Pieces {
    static constexpr u32 CHUNKS = V::chunks;
    static constexpr u32 UNITS = V::k / 8; // of eight elements
    static constexpr u32 CHUNK = (UNITS + CHUNKS - 1) / CHUNKS, LAST = UNITS - (CHUNKS - 1) * CHUNK; // units of a chunk, and of the last one
    static constexpr u32 EACH = (CHUNK + WARPS - 1) / WARPS; // of a piece; the last ones may have fewer
    static constexpr u32 STEPS = (EACH + 7) / 8; // a step takes 64 elements of a piece
    static constexpr bool EVEN = UNITS % (CHUNKS * WARPS) == 0, FULL = EVEN && EACH % 8 == 0;
    static constexpr u32 BYTES = EACH * 32; // of a staged piece
    static_assert(V::k % 8 == 0, "rows are whole units");
    static_assert((CHUNKS - 1) * CHUNK < UNITS, "no chunk is empty");

    // The first unit of a piece, and the number of its units.
    __device__ static __forceinline__ u32 first(u32 chunk, u32 warp) { return chunk * CHUNK + warp * EACH; }
    __device__ static __forceinline__ u32 units(u32 chunk, u32 warp) {
        if constexpr (EVEN) return EACH;
        u32 begin = warp * EACH, end = chunk + 1 == CHUNKS ? LAST : CHUNK;
        return begin < end ? min(EACH, end - begin) : 0;
    }
};

// What a warp stages at a time: one slice, or as many pieces as V::staged.
template <class V, bool TENSOR = V::chunks != 0> struct Staging {
    using P = Partition<V>;
    static constexpr u32 PIECES = 1, QUADS = P::EACH * P::UNIT / 4, BYTES = P::BYTES;
    __device__ static __forceinline__ u32 first(u32, u32 warp) { return warp * P::EACH * P::UNIT; }
    __device__ static __forceinline__ u32 quads(u32, u32 warp) { return P::units(warp) * P::UNIT / 4; }
};
template <class V> struct Staging<V, true> {
    using T = Pieces<V>;
    static constexpr u32 PIECES = V::staged, QUADS = T::EACH * 2, BYTES = PIECES * T::BYTES;
    __device__ static __forceinline__ u32 first(u32 chunk, u32 warp) { return T::first(chunk, warp) * 8; }
    __device__ static __forceinline__ u32 quads(u32 chunk, u32 warp) { return T::units(chunk, warp) * 2; }
};
