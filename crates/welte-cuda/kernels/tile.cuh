// Layout of the 16-bit activations that the tile products read: [k / 64][row][64]. Consecutive rows of one chunk of 64 are
// contiguous. The eight 16-byte pieces of a row are swizzled, so that eight rows of one column of pieces are in different
// banks. prepare.cu writes this layout, and it is copied to shared memory unchanged.
#pragma once
#include "common.cuh"

// Bytes from the start of a chunk (or of a tile of 128-byte rows) to piece `piece` of `row`.
__device__ __forceinline__ u32 tile_at(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
