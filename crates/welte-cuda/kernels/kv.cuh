// The paged KV cache: [layer][k or v][page][kv head][position in page][head dim], F16 or Q8_0.
// Macros: HEAD_DIM; PAGE, positions per page; KV_Q8, 0 for F16 and 1 for Q8_0 (blocks of an f16 scale and 32 signed bytes).
#pragma once
#include "common.cuh"

struct Kv {
    u8 *start;
    const u32 *pages; // [slot][entry]
    u32 total;        // pages per layer
    u32 entries;      // per slot
    u32 layer;
    u32 heads; // kv heads
};

// Bytes of one position of one head.
__host__ __device__ constexpr u32 kv_row_bytes(u32 head_dim) { return KV_Q8 ? head_dim / 32 * 34 : head_dim * 2; }
constexpr u32 KV_ROW = kv_row_bytes(HEAD_DIM);

__device__ __forceinline__ u32 kv_page(const Kv &kv, u32 slot, u32 position) {
    return __ldg(kv.pages + (u64)slot * kv.entries + position / PAGE);
}

// The keys (part 0) or values (part 1) of a head in a page. A position has `bytes` bytes.
__device__ __forceinline__ u8 *kv_head(const Kv &kv, u32 part, u32 page, u32 head, u32 bytes = KV_ROW) {
    u64 run = ((u64)(kv.layer * 2 + part) * kv.total + page) * kv.heads + head;
    return kv.start + run * ((u64)PAGE * bytes);
}

__device__ __forceinline__ u8 *kv_at(const Kv &kv, u32 part, u32 head, const Row &row, u32 bytes = KV_ROW) {
    return kv_head(kv, part, kv_page(kv, row.slot, row.position), head, bytes) + (u64)(row.position % PAGE) * bytes;
}

// The i-th number of a key or value.
__device__ __forceinline__ float kv_element(const u8 *row, u32 i) {
    if constexpr (KV_Q8) {
        const u8 *block = row + i / 32 * 34;
        return __half2float(*(const __half *)block) * (float)(i8)block[2 + i % 32];
    } else {
        return __half2float(((const __half *)row)[i]);
    }
}
