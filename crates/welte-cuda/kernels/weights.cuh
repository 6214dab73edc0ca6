// A weight matrix in device memory, for every format: FORMAT_FILE names the format's file, which defines `Format`.
//
// A format's blocks are regrouped into planes: [rows][stride], with every row aligned to 16 bytes and its padding zero
// (src/layout.rs has the same table). Every block format decodes to blocks of 32 elements: integers, and a scale and an
// offset per half of 16. A format's file declares its planes, and it reads and writes a block.
#pragma once
#include "blocks.cuh"

#include FORMAT_FILE

// Bytes from row to row of plane p.
__device__ __forceinline__ u32 plane_stride(int p, u32 k) {
    u32 entries = (k + Format::elements(p) - 1) / Format::elements(p);
    return round_up(entries * Format::bytes(p), 16);
}

struct Planes {
    const u8* start[MOST_PLANES];
    u32 stride[MOST_PLANES];

    __device__ __forceinline__ Planes(const u8* weight, u32 n, u32 k) {
#pragma unroll
        for (int p = 0; p < Format::PLANES; p++) {
            start[p] = weight;
            stride[p] = plane_stride(p, k);
            weight += (size_t)n * stride[p];
        }
    }

    // The start of row `row` in every plane.
    __device__ __forceinline__ void row(u32 row, const u8* to[MOST_PLANES]) const {
#pragma unroll
        for (int p = 0; p < Format::PLANES; p++) to[p] = start[p] + (size_t)row * stride[p];
    }
};
