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

// The elements that one load yields: a block of 32, or 8 of a format of floats. They stay packed until they are used.
struct Elements {
    static constexpr u32 COUNT = Format::BLOCKS ? 32 : 8;
#ifdef FLOATS
    float v[COUNT];
#else
    Block32 block;
#endif

    // Loads elements COUNT * i.. of the row of k that begins at `row` in every plane. Elements past its end are zero.
    __device__ __forceinline__ void load(const u8* const row[], u32 k, u32 i) {
#ifdef FLOATS
        // Planes are padded to 16 bytes, so the last elements of F32 may be only 4.
        if (Format::RAW_BYTES != 4 || i * COUNT + 4 < k) {
            Format::load8(row, i, v);
        } else {
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) v[e] = i * COUNT + e < k ? ((const float*)row[0])[i * COUNT + e] : 0.0f;
        }
#else
        block = Format::load(row, i);
#endif
    }

    __device__ __forceinline__ void clear() {
#ifdef FLOATS
#pragma unroll
        for (u32 e = 0; e < COUNT; e++) v[e] = 0.0f;
#else
        block = Block32{};
#endif
    }

    // Element e, which is known when the code is compiled.
    __device__ __forceinline__ float at(int e) const {
#ifdef FLOATS
        return v[e];
#else
        return fmaf(block.d[e / 16], (float)(i8)(block.q[e / 4] >> (8 * (e % 4))), block.m[e / 16]);
#endif
    }
};
