// Low-rank parts of products: the adapter of each row's slot. A bank has a place for each adapter (`Bank` of welte-table): ranks and scales
// of its sets, A, then B, in halves. A sum has one order, whatever the number of rows.
#include "common.cuh"

// The adapter of a slot.
struct SlotAdapter {
    u32 place; // NO_ADAPTER: none
    float scale;
};

#define NO_ADAPTER 0xffffffffu

struct AdapterArgs {
    const Step *step;       // of the rows that the command runs on
    const Step *rows;       // of the input rows
    const Step *outputs;    // not null: the command runs on these output rows
    const SlotAdapter *slots;
    const u8 *bank;
    const float *x;         // up: h
    float *y;               // down: h
    const float *part_of;   // up: the part of each row of the matrix; null: one
    const u32 *tokens;      // lookup
    u64 place_bytes;
    u64 a_at;               // bytes before A in a place
    u64 b_at;               // bytes before B
    u32 n;
    u32 k;
    u32 parts;
    u32 rank;
    u32 x_stride;
    u32 y_stride;
    u32 single; // not 0: only one row is live
    u32 wide;   // not 0: rows of A and x are read 8 values at a time
    float scale; // lookup: of the embedding
    u32 pad;
};

struct Set {
    u32 rank;
    float scale;
};

// The place of a row's adapter; null: it has none.
__device__ __forceinline__ const u8 *place_of(const AdapterArgs &a, u32 row, float &scale) {
    u32 input = a.outputs ? ((const u32 *)a.outputs->rows)[row] : row;
    SlotAdapter adapter = a.slots[a.rows->rows[input].slot];
    scale = adapter.scale;
    return adapter.place == NO_ADAPTER ? nullptr : a.bank + adapter.place * a.place_bytes;
}

__device__ __forceinline__ float dot8(uint4 halves, float4 x0, float4 x1, float sum) {
    const __half2 *h = (const __half2 *)&halves;
    float2 v0 = __half22float2(h[0]), v1 = __half22float2(h[1]), v2 = __half22float2(h[2]), v3 = __half22float2(h[3]);
    sum = fmaf(v0.x, x0.x, sum);
    sum = fmaf(v0.y, x0.y, sum);
    sum = fmaf(v1.x, x0.z, sum);
    sum = fmaf(v1.y, x0.w, sum);
    sum = fmaf(v2.x, x1.x, sum);
    sum = fmaf(v2.y, x1.y, sum);
    sum = fmaf(v3.x, x1.z, sum);
    return fmaf(v3.y, x1.w, sum);
}

// h = scale * A x. Block (row, part, 8 values of h): a warp for each value.
extern "C" __global__ void __launch_bounds__(256) adapt_down(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x, blocks = (a.rank + 7) / 8;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return;
    u32 part = blockIdx.y / blocks, i = blockIdx.y % blocks * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= a.rank) return;
    float scale;
    const u8 *place = place_of(a, row, scale);
    float sum = 0;
    if (place) {
        Set set = ((const Set *)place)[part];
        scale *= set.scale;
        if (i < set.rank) {
            const __half *m = (const __half *)(place + a.a_at) + ((u64)part * a.rank + i) * a.k;
            const float *x = a.x + (u64)row * a.x_stride;
            if (a.wide) {
                for (u32 at = lane * 8; at < a.k; at += 256) {
                    const float4 *from = (const float4 *)(x + at);
                    sum = dot8(*(const uint4 *)(m + at), from[0], from[1], sum);
                }
            } else {
                for (u32 at = lane; at < a.k; at += 32) sum = fmaf(__half2float(m[at]), x[at], sum);
            }
            sum = warp_sum(sum) * scale;
        }
    }
    if (lane == 0) a.y[(u64)row * a.y_stride + part * a.rank + i] = sum;
}

// h = scale * A[token]. Block (row).
extern "C" __global__ void __launch_bounds__(256) adapt_lookup(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return;
    float scale;
    const u8 *place = place_of(a, row, scale);
    bool reads = place && a.rows->rows[row].feature == NO_FEATURE;
    Set set = reads ? *(const Set *)place : Set{0, 0.0f};
    for (u32 i = threadIdx.x; i < a.rank; i += 256) {
        float v = 0;
        if (i < set.rank) {
            const __half *m = (const __half *)(place + a.a_at) + (u64)a.tokens[row] * a.rank;
            v = scale * set.scale * a.scale * __half2float(m[i]);
        }
        a.y[(u64)row * a.y_stride + i] = v;
    }
}

// y += B h. Block (row, 256 outputs): a thread for each output.
extern "C" __global__ void __launch_bounds__(256) adapt_up(const __grid_constant__ AdapterArgs a) {
    grid_release();
    grid_wait();
    u32 row = blockIdx.x, j = blockIdx.y * 256 + threadIdx.x;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live) || j >= a.n) return;
    float scale;
    const u8 *place = place_of(a, row, scale);
    if (!place) return;
    u32 part = a.part_of ? (u32)a.part_of[j] : 0;
    u32 rank = ((const Set *)place)[part].rank;
    if (rank == 0) return;
    const __half *m = (const __half *)(place + a.b_at) + (u64)j * a.rank;
    const float *h = a.x + (u64)row * a.x_stride + part * a.rank;
    float sum = 0;
    if (a.wide) {
        // Beyond the adapter's rank both are 0.
        for (u32 i = 0; i < rank; i += 8) {
            const float4 *from = (const float4 *)(h + i);
            sum = dot8(*(const uint4 *)(m + i), from[0], from[1], sum);
        }
    } else {
        for (u32 i = 0; i < rank; ++i) sum = fmaf(__half2float(m[i]), h[i], sum);
    }
    a.y[(u64)row * a.y_stride + j] += sum;
}
