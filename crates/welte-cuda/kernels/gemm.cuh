// Shared by the tile products: parameters, and the mapping from a tile to matrix rows and columns of y.
#pragma once
#include "common.cuh"

// Epilogues.
#define STORE 0
#define ADD 1
#define ACT_MUL 2 // the matrix is gate over up: y = act(gate) * up
#define SQUARED_RELU 3

struct GemmArgs {
    const u8* weight;
    const void* x; // written by prepare.cu, tiled
    float* y;
    const Step* step;
    u32 n; // of the matrix
    u32 k;
    u32 columns;   // of y: n, or half of it
    u32 x_rows;    // rows of x, a multiple of TILE_ROWS
    u32 y_stride;
    u32 act;
    u32 epilogue;
    float scale; // undoes the scaling by prepare.cu; a power of two
#if EXPERTS
    const u32* groups; // written by experts.cu: the tiles and their entries
    u32 used;          // experts per row
    u32 sharing;       // entries that share a row of x
    const float* bias; // of all experts; may be null
#endif
};

#if EXPERTS
// An entry is a row with one of its experts. A tile has entries of one expert. `groups` is the number of tiles, then the
// tiles (room for `most`), then the list of entries.
struct Entries {
    u32 expert;
    u32 first; // index in the list
    u32 count;
};
#endif

// The start of row `r` of y. With experts, `r` counts within the tile and `entries` lists the tile's rows.
__device__ __forceinline__ float* row_of_y(const GemmArgs& a, const u32* entries, u32 r) {
#if EXPERTS
    const u32 entry = entries[r];
    return a.y + (u64)(entry / a.used) * a.y_stride + entry % a.used * a.columns;
#else
    return a.y + (u64)r * a.y_stride;
#endif
}

// The matrix row of row `r` of the tile that begins at `first`. Gate and up alternate in groups of eight. A thread has rows g
// and g + 8 of every sixteen, so it holds both values of a pair.
__device__ __forceinline__ u32 matrix_row(const GemmArgs& a, u32 first, u32 r) {
    if (a.epilogue != ACT_MUL) return min(first + r, a.columns - 1);
    const u32 row = min(first + r / 16 * 8 + r % 8, a.columns - 1);
    return r % 16 < 8 ? row : a.columns + row;
}

// The tile's biases; null if there are none.
__device__ __forceinline__ const float* bias_of(const GemmArgs& a, u32 expert) {
#if EXPERTS
    return a.bias ? a.bias + (u64)expert * (a.epilogue == ACT_MUL ? 2 : 1) * a.columns : nullptr;
#else
    return nullptr;
#endif
}

// Stores a thread's four sums: matrix rows g and g + 8 of sixteen, which begin at `first` within the tile, for two
// consecutive rows of y from `row` on. `bias` may be null.
__device__ __forceinline__ void finish(const GemmArgs& a, const u32* entries, const float* bias, u32 first_n, u32 first, u32 row,
                                       u32 live, const float sums[4]) {
    const u32 g = threadIdx.x % 32 / 4;
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
        const u32 r = row + q % 2;
        // Explicit rounding keeps the compiler from fusing operations. The bits are then those of cuBLASLt with the same
        // epilogue, and for ACT_MUL with act_mul after it.
        float v = __fmul_rn(sums[q], a.scale);
        if (a.epilogue == ACT_MUL) {
            const u32 column = first_n + first / 2 + g;
            if (q >= 2 || r >= live || column >= a.columns) continue;
            float up = __fmul_rn(sums[(q + 2) % 4], a.scale);
            if (bias) v = __fadd_rn(v, bias[column]), up = __fadd_rn(up, bias[a.columns + column]);
            row_of_y(a, entries, r)[column] = gated(a.act, v, up);
        } else {
            const u32 column = first_n + first + g + q / 2 * 8;
            if (r >= live || column >= a.columns) continue;
            if (bias) v = __fadd_rn(v, bias[column]);
            if (a.epilogue == SQUARED_RELU) v = squared_relu(v);
            float* y = row_of_y(a, entries, r) + column;
            *y = a.epilogue == ADD ? __fadd_rn(*y, v) : v;
        }
    }
}
