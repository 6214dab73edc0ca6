// The state of one head of a recurrent layer: a matrix of KEY_DIM rows. A block takes COLUMNS of its columns, for all rows of one
// slot, and keeps them in registers from row to row. So a row's bits do not depend on the number of rows.
#pragma once
#include "common.cuh"

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

// The sum over the threads that share a column.
__device__ __forceinline__ float column_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

// ln(1 + e^x)
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
