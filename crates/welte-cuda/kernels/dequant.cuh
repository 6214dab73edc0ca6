// Widens units of 32 weights to 16-bit floats, for the tile products and for slabs. A unit is loaded first and widened later,
// so that the next units' loads are in flight meanwhile. The code has no branches. F16 and BF16 keep their type; all other
// formats become F16.
#pragma once
#include "weights.cuh"

struct Unit {
#ifdef PLAIN
    uint4 v[2 * Format::RAW_BYTES];
#else
    Block32 block;
#endif
};

__device__ __forceinline__ u32 as_u32(half2 v) { return *(u32*)&v; }

// Loads unit `unit` of the row that begins at `row` in every plane. Elements past the row's end are zero.
__device__ __forceinline__ Unit load_unit(const u8* const row[], u32 k, u32 unit) {
    Unit u;
#ifdef PLAIN
    constexpr u32 COUNT = 2 * Format::RAW_BYTES;
    const u32 pieces = plane_stride(0, k) / 16;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        const u32 piece = unit * COUNT + i;
        u.v[i] = __ldg((const uint4*)row[0] + min(piece, pieces - 1));
        if (piece >= pieces) u.v[i] = make_uint4(0, 0, 0, 0);
    }
#else
    u.block = Format::load(row, min(unit, k / 32 - 1));
    if (unit >= k / 32) u.block.d[0] = u.block.d[1] = u.block.m[0] = u.block.m[1] = 0.0f;
#endif
    return u;
}

// The same through shared memory, so many units per thread can be in flight without using registers. Each of `threads`
// threads has its own place for one unit in every slot, which no other thread accesses.
__host__ __device__ constexpr u32 entry_width(int p) { return Format::bytes(p) < 4 ? 4 : Format::bytes(p); }

// Bytes per unit.
__host__ __device__ constexpr u32 raw_bytes() {
#ifdef PLAIN
    return 32 * Format::RAW_BYTES;
#else
    u32 bytes = 0;
    for (int p = 0; p < Format::PLANES; p++) bytes += entry_width(p);
    return bytes;
#endif
}

template <int P> __device__ __forceinline__ void copy_entries(u32 slot, u32 thread, u32 threads, const u8* const row[], u32 unit) {
    if constexpr (P < Format::PLANES) {
        constexpr u32 WIDTH = entry_width(P);
        const u32 at = unit * 32 / Format::elements(P) * Format::bytes(P) / WIDTH * WIDTH;
        copy_async<WIDTH>(slot + thread * WIDTH, row[P] + at);
        copy_entries<P + 1>(slot + threads * WIDTH, thread, threads, row, unit);
    }
}

__device__ __forceinline__ void copy_unit(u8* slot, u32 thread, u32 threads, const u8* const row[], u32 k, u32 unit) {
    const u32 to = shared_address(slot);
#ifdef PLAIN
    constexpr u32 COUNT = 2 * Format::RAW_BYTES;
    const u32 pieces = plane_stride(0, k) / 16;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        copy_async<16>(to + (i * threads + thread) * 16, row[0] + 16 * min(unit * COUNT + i, pieces - 1));
    }
#else
    copy_entries<0>(to, thread, threads, row, min(unit, k / 32 - 1));
#endif
}

__device__ __forceinline__ Unit take_unit(const u8* slot, u32 thread, u32 threads, u32 k, u32 unit) {
    Unit u;
#ifdef PLAIN
    constexpr u32 COUNT = 2 * Format::RAW_BYTES;
    const u32 pieces = plane_stride(0, k) / 16;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        u.v[i] = *(const uint4*)(slot + (i * threads + thread) * 16);
        if (unit * COUNT + i >= pieces) u.v[i] = make_uint4(0, 0, 0, 0);
    }
#else
    const u32 last = k / 32 - 1, within = min(unit, last);
    const u8* planes[MOST_PLANES];
#pragma unroll
    for (int p = 0; p < Format::PLANES; p++) {
        // The row's virtual start, from which the unit's entry is at its usual offset.
        const u32 at = within * 32 / Format::elements(p) * Format::bytes(p);
        planes[p] = slot + thread * entry_width(p) - at / entry_width(p) * entry_width(p);
        slot += threads * entry_width(p);
    }
    u.block = Format::load(planes, within);
    if (unit > last) u.block.d[0] = u.block.d[1] = u.block.m[0] = u.block.m[1] = 0.0f;
#endif
    return u;
}

#if defined(FLOATS) && !defined(PLAIN)
__device__ __forceinline__ uint2 widen4(u32 q, half2 d, half2) { return Format::widen4(q, d); }
#elif !defined(FLOATS)
// Four integers (signed bytes) as f16, times d, plus m. The byte is placed in the mantissa of 1024, where f16 numbers are 1
// apart. Subtracting 1024 + 128 is exact.
__device__ __forceinline__ uint2 widen4(u32 q, half2 d, half2 m) {
    const half2 zero = __float2half2_rn(1152.0f);
    q ^= 0x80808080u;
    const u32 a = __byte_perm(q, 0x64646464u, 0x4140), b = __byte_perm(q, 0x64646464u, 0x4342);
    return make_uint2(as_u32(__hfma2(__hsub2(*(half2*)&a, zero), d, m)), as_u32(__hfma2(__hsub2(*(half2*)&b, zero), d, m)));
}
#endif

// Widens a unit to four pieces of eight weights, in order.
__device__ __forceinline__ void widen(const Unit& u, uint4 out[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#ifdef PLAIN
        if (Format::RAW_BYTES == 2) {
            out[i] = u.v[i];
            continue;
        }
        const uint4 a = u.v[2 * i], b = u.v[2 * i + 1];
        out[i] = make_uint4(as_u32(__floats2half2_rn(__uint_as_float(a.x), __uint_as_float(a.y))),
                            as_u32(__floats2half2_rn(__uint_as_float(a.z), __uint_as_float(a.w))),
                            as_u32(__floats2half2_rn(__uint_as_float(b.x), __uint_as_float(b.y))),
                            as_u32(__floats2half2_rn(__uint_as_float(b.z), __uint_as_float(b.w))));
#else
        const half2 d = __float2half2_rn(u.block.d[i / 2]), m = __float2half2_rn(u.block.m[i / 2]);
        const uint2 a = widen4(u.block.q[2 * i], d, m), b = widen4(u.block.q[2 * i + 1], d, m);
        out[i] = make_uint4(a.x, a.y, b.x, b.y);
#endif
    }
}
