// Shared by the kernels of encoders' attention.
#pragma once
#include "softmax.cuh"

// Neighbouring rows of one text: at most as many as a block takes. They see the rows from `first` to `end`.
struct TextTile {
    u32 row;
    u32 first;
    u32 end;
};

// The tiles of a step, in the order of its rows.
struct TextTiles {
    u32 count;
    TextTile tile[1]; // actually as many as there can be
};

struct EncodeArgs {
    const Step *step;
    const TextTiles *tiles;
    const float *qkv; // rows of q (heads), k (kv_heads), v (kv_heads)
    float *y;
    u32 heads;
    u32 kv_heads;
    u32 window; // 0: none
    u32 qkv_stride;
    u32 y_stride;
    float scale;
    u32 unseen; // the last rows of a text that has more of them are not seen
    u32 by_reach; // 1: a row sees none that follow its reach
    u32 places;   // the side of the tables of what scores add by distance; 0: they add nothing
    float softcap; // of products; 0: none
    const float *absent; // q, k and v of the rows that a rectangle lacks; may be null
    const float *slopes; // what scores lose by head for each row of distance; may be null
};

// The places of a text's rows: lines and columns, and those of its first row.
struct Rectangle {
    u32 first;
    u32 corner[2];
    u32 sides[2];
};

__device__ __forceinline__ Rectangle rectangle_of(const EncodeArgs &a, u32 first, u32 end) {
    Rectangle r;
    r.first = first;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        r.corner[i] = a.step->rows[first].axes[1 + i];
        r.sides[i] = a.step->rows[end - 1].axes[1 + i] - r.corner[i] + 1;
    }
    return r;
}

// The values of the key at `at`, counted as rows are; null: the rectangle lacks it.
__device__ __forceinline__ const float *key_of(const EncodeArgs &a, const Rectangle &r, u32 at) {
    if (!a.absent) return a.qkv + (u64)at * a.qkv_stride;
    u32 line = (at - r.first) / a.places, column = (at - r.first) % a.places;
    return line < r.sides[0] && column < r.sides[1] ? a.qkv + (u64)(r.first + line * r.sides[1] + column) * a.qkv_stride : a.absent;
}

// A value of a table of distances that is resized linearly to `count`.
__device__ __forceinline__ float resized(const float *table, u32 places, u32 count, u32 index) {
    u32 all = 2 * places - 1;
    if (count == all) return table[min(index, all - 1)];
    float place = fmaxf((index + 0.5f) * ((float)all / (float)count) - 0.5f, 0.0f), low = floorf(place), part = place - low;
    return table[min((u32)low, all - 1)] * (1.0f - part) + table[min((u32)low + 1, all - 1)] * part;
}

// What the score of a row and a key adds for their distance. `head_dim` is that of all heads.
__device__ __forceinline__ float near(const EncodeArgs &a, const Rectangle &r, u32 head_dim, u32 head, u32 row, u32 at) {
    u32 all = 2 * a.places - 1;
    const float *table = a.qkv + (u64)row * a.qkv_stride + (a.heads + 2 * a.kv_heads) * head_dim + head * 2 * all;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        u32 side = a.absent ? a.places : r.sides[i];
        u32 key = a.absent ? (i ? (at - r.first) % a.places : (at - r.first) / a.places) : a.step->rows[at].axes[1 + i] - r.corner[i];
        u32 own = a.step->rows[row].axes[1 + i] - r.corner[i];
        sum += resized(table + i * all, a.places, 2 * side - 1, own + side - 1 - key);
    }
    return sum;
}

// A product of a query and a key, which both kernels have times log2(e).
__device__ __forceinline__ float capped(const EncodeArgs &a, float product) {
    float cap = a.softcap * LOG2E;
    return a.softcap == 0.0f ? product : cap * tanhf(product / cap);
}

// What the score of a row and a key loses for their distance, times log2(e), for each row of distance.
__device__ __forceinline__ float slope_of(const EncodeArgs &a, u32 head) { return a.slopes ? a.slopes[head] * LOG2E : 0.0f; }

// The distance of two rows.
__device__ __forceinline__ float away(u32 row, u32 other) { return (float)(row > other ? row - other : other - row); }

// Where the rows of a text end that are seen.
__device__ __forceinline__ u32 seen_end(const EncodeArgs &a, u32 first, u32 end) { return end - first > a.unseen ? end - a.unseen : end; }
