// Embedding lookup: x[r] = scale * table[tokens[r]]. A tied head multiplies with the same planes.
#include "weights.cuh"

struct EmbedArgs {
    const u8* weight;
    const u32* tokens;
    float* x;
    const Step* step;
    u32 n;
    u32 k;
    u32 x_stride;
    float scale;
};

// A thread decodes 32 elements of a block format, or 8 floats. Grid: (parts of a row, rows).
extern "C" __global__ void embed(const __grid_constant__ EmbedArgs a) {
    constexpr u32 UNIT = Format::BLOCKS ? 32 : 8;
    Planes planes(a.weight, a.n, a.k);
    u32 row = blockIdx.y, unit = blockIdx.x * blockDim.x + threadIdx.x;
    grid_release();
    grid_wait();
    if (a.step->ended || row >= a.step->live || unit * UNIT >= a.k) return;
    const u8* from[MOST_PLANES];
    planes.row(min(a.tokens[row], a.n - 1), from);
    float v[UNIT];
#ifdef FLOATS
    // Planes are padded to 16 bytes, so the last unit of F32 may have only 4 elements.
    if (Format::RAW_BYTES != 4 || unit * UNIT + 4 < a.k) {
        Format::load8(from, unit, v);
    } else {
        for (u32 i = 0; i < UNIT; i++) v[i] = unit * UNIT + i < a.k ? ((const float*)from[0])[unit * UNIT + i] : 0.0f;
    }
#else
    Block32 b = Format::load(from, unit);
#pragma unroll
    for (int e = 0; e < 32; e++) {
        float q = (float)(i8)(b.q[e / 4] >> (8 * (e % 4)));
        v[e] = fmaf(b.d[e / 16], q, b.m[e / 16]);
    }
#endif
    float* x = a.x + (size_t)row * a.x_stride + unit * UNIT;
    for (u32 e = 0; e < UNIT; e++) {
        if (unit * UNIT + e < a.k) x[e] = a.scale * v[e];
    }
}
