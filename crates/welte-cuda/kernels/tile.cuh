// 16-bit activations as the tile products read them: [k / 64][row][64], so that one stretch of rows of one chunk of 64
// lies in one piece, and with the eight 16-byte pieces of a row exchanged so that eight rows of one column of pieces
// fall into eight different banks. Written by prepare.cu, in the order that shared memory wants.
#pragma once
#include "common.cuh"

// Bytes from the start of a chunk (or of a tile of 128-byte rows) to piece `piece` of `row`.
__device__ __forceinline__ u32 tile_at(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
