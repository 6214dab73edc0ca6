// What the tile products share: their parameters, and which rows of the matrix and columns of y a tile has.
#pragma once
#include "common.cuh"

#define TILE_N 128 // rows of the matrix that a block makes

// What becomes of the sums.
#define STORE 0
#define ADD 1
#define ACT_MUL 2 // the matrix is gate over up: y = act(gate) * up

struct GemmArgs {
    const u8* weight;
    const void* x; // prepare.cu, tiled
    float* y;
    float* parts; // [tile][split][TILE_N * TILE_ROWS] where k is split
    u32* done;    // a counter per tile, left at zero
    const Step* step;
    u32 n; // of the matrix
    u32 k;
    u32 columns;   // of y: n, or half of it
    u32 x_rows;    // rows of x, a multiple of TILE_ROWS
    u32 y_stride;
    u32 act;
    u32 chunks_per_split; // chunks of 64 of k
    u32 epilogue;
    float scale; // undoes prepare's
#if EXPERTS
    const u32* groups; // experts.cu: what each tile has
    u32 used;          // experts of a row
    u32 sharing;       // entries that share a row of x
#endif
};

#if EXPERTS
// A row with one of its experts is an entry; a tile has entries of one expert. In front of the groups is the number of
// tiles; after `most` tiles comes the list of entries.
struct Entries {
    u32 expert;
    u32 first; // place in the list
    u32 count;
};
#endif

// Where row `r` of y begins: of the tile if its rows are entries, which `entries` lists.
__device__ __forceinline__ float* row_of_y(const GemmArgs& a, const u32* entries, u32 r) {
#if EXPERTS
    const u32 entry = entries[r];
    return a.y + (u64)(entry / a.used) * a.y_stride + entry % a.used * a.columns;
#else
    return a.y + (u64)r * a.y_stride;
#endif
}

// The matrix's row behind row `r` of the tile that begins at `first`. Gate and up alternate in eights, so that one
// thread holds both of a pair: it has rows g and g + 8 of each sixteen.
__device__ __forceinline__ u32 matrix_row(const GemmArgs& a, u32 first, u32 r) {
    if (a.epilogue != ACT_MUL) return min(first + r, a.columns - 1);
    const u32 row = min(first + r / 16 * 8 + r % 8, a.columns - 1);
    return r % 16 < 8 ? row : a.columns + row;
}

// Where a thread's sums go: it has those of rows g and g + 8 of each sixteen rows of the matrix, `first` the first of
// them within the tile, and of two neighbouring rows of y from `row` on.
__device__ __forceinline__ void finish(const GemmArgs& a, const u32* entries, u32 first_n, u32 first, u32 row, u32 live,
                                       const float sums[4]) {
    const u32 g = threadIdx.x % 32 / 4;
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
        const u32 r = row + q % 2;
        const float v = sums[q] * a.scale;
        if (a.epilogue == ACT_MUL) {
            const u32 column = first_n + first / 2 + g;
            if (q >= 2 || r >= live || column >= a.columns) continue;
            row_of_y(a, entries, r)[column] = activate(a.act, v) * (sums[(q + 2) % 4] * a.scale);
        } else {
            const u32 column = first_n + first + g + q / 2 * 8;
            if (r >= live || column >= a.columns) continue;
            float* y = row_of_y(a, entries, r) + column;
            *y = a.epilogue == ADD ? *y + v : v;
        }
    }
}
