// The order of logits: larger values first, then lower indices.
#pragma once
#include "common.cuh"

// The rank of a value: larger for larger values, then for lower indices. 0 stands for no value. Both zeros are equal; the last
// bit tells them apart.
__device__ __forceinline__ u64 ranked(float v, u32 index) {
    u32 bits = __float_as_uint(v + 0.0f);
    u32 low = (0x7fffffffu - index) << 1 | (__float_as_uint(v) == 0x80000000u);
    return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | low;
}

__device__ __forceinline__ float value_of(u64 rank) {
    u32 key = (u32)(rank >> 32);
    float v = __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
    return v == 0.0f && (rank & 1) ? -0.0f : v;
}

__device__ __forceinline__ u32 index_of(u64 rank) { return rank ? 0x7fffffffu - ((u32)rank >> 1) : 0; }

// Loads that bypass L1, because another block wrote the value.
__device__ __forceinline__ u64 far(const u64 *p) { return __ldcg((const unsigned long long *)p); }
__device__ __forceinline__ u32 far(const u32 *p) { return __ldcg(p); }
