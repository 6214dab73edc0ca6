// Embedding lookup: x[r] = scale * table[tokens[r]]. A tied head multiplies with the same planes. Rows may read features instead.
#include "weights.cuh"

struct EmbedArgs {
    const u8* weight;
    const u32* tokens;
    float* x;
    const Step* step;
    const float* features; // null where the command takes none
    u32 n;
    u32 k;
    u32 x_stride;
    float scale;
    u32 feature_stride;
    u32 pad;
};

// A thread decodes 32 elements of a block format, or 8 floats. Grid: (parts of a row, rows).
extern "C" __global__ void embed(const __grid_constant__ EmbedArgs a) {
    constexpr u32 UNIT = Elements::COUNT;
    Planes planes(a.weight, a.n, a.k);
    u32 row = blockIdx.y, unit = blockIdx.x * blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (a.step->ended || row >= a.step->live || unit * UNIT >= a.k) return;
    float* x = a.x + (size_t)row * a.x_stride + unit * UNIT;
    u32 feature = a.features ? a.step->rows[row].feature : NO_FEATURE;
    if (feature != NO_FEATURE) {
        const float* given = a.features + (size_t)feature * a.feature_stride + unit * UNIT;
        for (u32 e = 0; e < UNIT && unit * UNIT + e < a.k; e++) x[e] = given[e];
        return;
    }
    const u8* from[MOST_PLANES];
    planes.row(min(a.tokens[row], a.n - 1), from);
    Elements v;
    v.load(from, a.k, unit);
#pragma unroll
    for (int e = 0; e < UNIT; e++) {
        if (unit * UNIT + e < a.k) x[e] = a.scale * v.at(e);
    }
}
