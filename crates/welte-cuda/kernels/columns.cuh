// Shared by the products of decode rows (columns.cu, columns_wide.cu): y[row][n] = sum over k of W[n][k] x[row][k]. Weights are read once
// for up to COLUMNS rows, and widened to 16 bits in registers.
//
// The matrix is cut into tiles of 128 rows, and tiles into chunks of 128 elements of k. Each block takes an even run of chunks, tile
// after tile. The chunks of a tile that one block takes are one chain of products. Where several blocks share a tile, their sums are
// added in the order of k. Runs depend on the matrix and the GPU alone. A row of y therefore has the same bits for any number of rows.
//
// The order of k within a chunk: lane t of four has the t-th 32 elements, and product j of eight takes the elements 4j..4j+4 of all
// four lanes. Each lane thus decodes whole blocks. prepare.cu writes x in the same order.
//
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), COLUMNS, WHOLE (1 where k is a multiple of CHUNK), COPIERS
// (threads that copy weights).
#pragma once
#define EXPERTS 0
#include "dequant.cuh"
#include "gemm.cuh"

struct ColumnsArgs {
    GemmArgs gemm;
    float4* partials; // [block][first or last tile of its run][value][thread]
    u32* counters;    // of each tile; zero between kernels
    u32 first;        // row of x to start with
    u32 pad;
};

constexpr u32 TILE = 128, CHUNK = 128;
constexpr u32 MULTIPLIERS = 256; // threads that multiply

// The work of a block: units, which are the chunks of all tiles.
struct Run {
    u32 per_tile; // columns of y
    u32 chunks;   // of a tile
    u32 units;    // of all blocks
    u32 begin, end;

    __device__ __forceinline__ Run(const GemmArgs& a) {
        per_tile = a.epilogue == ACT_MUL ? TILE / 2 : TILE;
        chunks = (a.k + CHUNK - 1) / CHUNK;
        units = (a.columns + per_tile - 1) / per_tile * chunks;
        begin = begin_of(blockIdx.x);
        end = begin_of(blockIdx.x + 1);
    }

    __device__ __forceinline__ u32 begin_of(u32 block) const { return (u32)((u64)units * block / gridDim.x); }
};

// The blocks that share a tile: their partial sums.
struct Sharing {
    u32 others;          // blocks besides the first
    const float4* first; // this thread's first value of the first block
    const float4* next;  // the same of the second one; the others follow, each as far from the one before

    __device__ __forceinline__ Sharing(const Run& run, u32 tile, const float4* partials, u32 partial, u32 thread) {
        const u32 from = (u32)(((u64)(tile * run.chunks + 1) * gridDim.x - 1) / run.units);
        const u32 to = (u32)(((u64)(tile + 1) * run.chunks * gridDim.x - 1) / run.units);
        others = to - from;
        // The first of them may have begun with another tile.
        const bool began_before = run.begin_of(from) / run.chunks != tile;
        first = partials + ((u64)from * 2 + began_before) * partial + thread;
        next = partials + (u64)(from + 1) * 2 * partial + thread;
    }
};

// A chunk's part of plane P, per matrix row.
template <int P> struct Part {
    static constexpr u32 ENTRIES = CHUNK / Format::elements(P) ? CHUNK / Format::elements(P) : 1;
    static constexpr u32 BYTES = ENTRIES * Format::bytes(P) < 4 ? 4 : ENTRIES * Format::bytes(P);
    static constexpr u32 PIECE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4; // bytes per copy
    static constexpr u32 PIECES = BYTES / PIECE;
    static constexpr u32 AT = Part<P - 1>::AT + TILE * Part<P - 1>::BYTES; // offset in the stage
    static constexpr u32 COPIES = (TILE * PIECES + COPIERS - 1) / COPIERS;  // per thread
    static constexpr u32 COPY = Part<P - 1>::COPY + Part<P - 1>::COPIES;    // index of the first one

    // Where a chunk begins within a row of the plane.
    __device__ static __forceinline__ u32 begin(u32 chunk) {
        return chunk * CHUNK / Format::elements(P) * Format::bytes(P) / PIECE * PIECE;
    }

    // The matrix row of copy `i` of a thread.
    __device__ static __forceinline__ u32 row(u32 i, u32 copier) { return min((i * COPIERS + copier) / PIECES, TILE - 1); }
};
template <> struct Part<-1> {
    static constexpr u32 BYTES = 0, AT = 0, COPIES = 0, COPY = 0;
};
constexpr int LAST = Format::PLANES - 1;
constexpr u32 W_BYTES = Part<LAST>::AT + TILE * Part<LAST>::BYTES;
constexpr u32 COPIES = Part<LAST>::COPY + Part<LAST>::COPIES;

// The place of a 16-byte piece in its row of 16-bit weights. The eight lanes that read together then use different banks.
__device__ __forceinline__ u32 place(u32 row, u32 piece) {
#ifdef PLAIN
    if (Format::RAW_BYTES == 2) return piece ^ (piece >> 3) ^ (row & 1) << 1;
#endif
    return piece;
}

// Copies the weights of a chunk. `offset(P, i)` gives where the row of copy `i` of plane P begins, in units of 16 bytes from the start of
// the plane. So many copies' addresses are worked out at once.
template <u32 AT_ONCE, int P = 0, class Offset>
__device__ __forceinline__ void copy_weights(const Planes& planes, u32 to, u32 chunk, u32 copier, const Offset& offset) {
    using part = Part<P>;
    const u32 begin = part::begin(chunk);
#pragma unroll AT_ONCE
    for (u32 i = 0; i < part::COPIES; i++) {
        const u32 index = i * COPIERS + copier, row = index / part::PIECES, piece = index % part::PIECES;
        if (TILE * part::PIECES % COPIERS && index >= TILE * part::PIECES) break;
        const u32 at = begin + piece * part::PIECE, target = to + part::AT + row * part::BYTES + place(row, piece) * part::PIECE;
        const u8* const from = planes.start[P] + (u64)offset(P, part::COPY + i, part::row(i, copier)) * 16 + at;
        if (WHOLE) copy_async<part::PIECE>(target, from);
        else copy_async<part::PIECE>(target, from, at < planes.stride[P]);
    }
    if constexpr (P < LAST) copy_weights<AT_ONCE, P + 1>(planes, to, chunk, copier, offset);
}

template <int P> __device__ __forceinline__ void aim(const u8* stage, u32 row, u32 chunk, const u8* planes[MOST_PLANES]) {
    planes[P] = stage + Part<P>::AT + row * Part<P>::BYTES - Part<P>::begin(chunk);
    if constexpr (P < LAST) aim<P + 1>(stage, row, chunk, planes);
}

// The weights of a lane in a matrix row of the tile: 32 of a chunk.
__device__ __forceinline__ void take(const u8* stage, u32 row, u32 chunk, u32 t, uint4 out[4]) {
    Unit unit;
#ifdef PLAIN
    constexpr u32 COUNT = 2 * Format::RAW_BYTES;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) unit.v[i] = *(const uint4*)(stage + row * Part<0>::BYTES + place(row, t * COUNT + i) * 16);
#else
    const u8* planes[MOST_PLANES];
    aim<0>(stage, row, chunk, planes);
    unit.block = Format::load(planes, chunk * 4 + t);
#endif
    widen(unit, out);
}

// Adds the sums of the blocks that share a tile, in the order of k, and stores the results: a thread's value `v`, which is of the
// matrix rows from `n` on and of the rows of y from `row` on. FLIGHT blocks' sums are loaded at once.
template <u32 FLIGHT>
__device__ __forceinline__ void store_value(const GemmArgs& a, const Sharing& from, u32 stride, u32 v, u32 first_n, u32 n, u32 row, u32 live) {
    const u32 g = threadIdx.x % 32 / 4;
    float before[4] = {};
    if (a.epilogue == ADD) {
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const u32 r = row + q % 2, column = first_n + n + g + q / 2 * 8;
            if (r < live && column < a.columns) before[q] = __ldcg(row_of_y(a, nullptr, r) + column);
        }
    }
    const float4 mine = __ldcg(from.first + v * MULTIPLIERS);
    float s[4] = {mine.x, mine.y, mine.z, mine.w};
    for (u32 o = 0; o < from.others; o += FLIGHT) {
        float4 more[FLIGHT];
#pragma unroll
        for (u32 f = 0; f < FLIGHT; f++) more[f] = __ldcg(from.next + (u64)min(o + f, from.others - 1) * stride + v * MULTIPLIERS);
#pragma unroll
        for (u32 f = 0; f < FLIGHT; f++) {
            if (o + f >= from.others) continue;
            s[0] += more[f].x, s[1] += more[f].y, s[2] += more[f].z, s[3] += more[f].w;
        }
    }
    if (a.epilogue == ACT_MUL) {
        finish(a, nullptr, nullptr, first_n, n, row, live, s);
        return;
    }
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
        const u32 r = row + q % 2, column = first_n + n + g + q / 2 * 8;
        const float sum = __fmul_rn(s[q], a.scale);
        if (r < live && column < a.columns) row_of_y(a, nullptr, r)[column] = a.epilogue == ADD ? __fadd_rn(before[q], sum) : sum;
    }
}
