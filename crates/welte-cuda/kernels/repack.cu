// Moves encoded rows from the file's layout to the planes of a weight. Runs only at load.
// Macros: FORMAT_FILE; TABLE if the format's file refers to entries of `table`.
#ifdef TABLE
#include "common.cuh"
#include "generated.cuh"
#endif
#include "weights.cuh"

struct RepackArgs {
    const u8* raw; // `rows` encoded rows
    u8* weight;    // the first plane
    u32 n;         // rows of the whole matrix
    u32 k;
    u32 first_row; // destination of the first row
    u32 rows;
};

// A thread moves 32 elements of a block format, or 16 bytes of floats.
extern "C" __global__ void repack(const __grid_constant__ RepackArgs a) {
    Planes planes(a.weight, a.n, a.k);
#ifdef PLAIN
    constexpr u32 UNIT = 16 / Format::RAW_BYTES;
#else
    constexpr u32 UNIT = 32;
#endif
    u32 units = (a.k + UNIT - 1) / UNIT;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (u64)a.rows * units; i += (u64)gridDim.x * blockDim.x) {
        u32 row = (u32)(i / units), unit = (u32)(i % units);
        const u8* raw = a.raw + (size_t)row * (a.k / Format::RAW_BLOCK) * Format::RAW_BYTES;
        const u8* from[MOST_PLANES];
        planes.row(a.first_row + row, from);
        u8* to[MOST_PLANES];
        for (int p = 0; p < Format::PLANES; p++) to[p] = (u8*)from[p];
#ifdef PLAIN
        u32 at = 16 * unit, bytes = min(a.k * Format::RAW_BYTES - at, 16u);
        copy(to[0] + at, raw + at, bytes);
#else
        Format::repack(raw, unit, to);
#endif
        if (unit + 1 < units) continue;
        for (int p = 0; p < Format::PLANES; p++) {
            u32 used = (a.k + Format::elements(p) - 1) / Format::elements(p) * Format::bytes(p);
            for (u32 at = used; at < planes.stride[p]; at++) to[p][at] = 0;
        }
    }
}
