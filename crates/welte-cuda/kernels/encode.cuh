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
    u32 pad;
};

// Where the rows of a text end that are seen.
__device__ __forceinline__ u32 seen_end(const EncodeArgs &a, u32 first, u32 end) { return end - first > a.unseen ? end - a.unseen : end; }
