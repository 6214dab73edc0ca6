// Products of the rows of a decode pass on tensor cores: y[row][n] = sum over k of W[n][k] x[row][k]. Weights are read once for up to
// COLUMNS rows, and widened to 16 bits in registers.
//
// The matrix is cut into tiles of 128 rows, and tiles into chunks of 128 elements of k. Each block takes an even run of chunks, tile
// after tile. The chunks of a tile that one block takes are one chain of products. Where several blocks share a tile, the last
// one to finish adds their sums in the order of k. Runs depend on the matrix and the GPU alone. A row of y therefore has the same
// bits for any number of rows.
//
// The order of k within a chunk: lane t of four has the t-th 32 elements, and product j of eight takes the elements 4j..4j+4 of all
// four lanes. Each lane thus decodes whole blocks. prepare.cu writes x in the same order.
//
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), COLUMNS (8, 16, 32, 64, 128), WHOLE (1 where k is a multiple
// of CHUNK), STAGES, RESIDENT (blocks per multiprocessor that registers must allow).
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

constexpr u32 TILE = 128, CHUNK = 128, THREADS = 256;
constexpr u32 ACROSS = COLUMNS >= 64 ? 2 : 1; // warps that share matrix rows
constexpr u32 WARP_N = 16 * ACROSS, WARP_COLUMNS = COLUMNS / ACROSS;
constexpr u32 VALUES = WARP_N / 16 * (WARP_COLUMNS / 8); // of four sums, per thread
constexpr u32 FLIGHT = 4; // blocks whose sums are loaded at once
constexpr u32 X_BYTES = COLUMNS * CHUNK * 2;

// A chunk's part of plane P, per matrix row.
template <int P> struct Part {
    static constexpr u32 ENTRIES = CHUNK / Format::elements(P) ? CHUNK / Format::elements(P) : 1;
    static constexpr u32 BYTES = ENTRIES * Format::bytes(P) < 4 ? 4 : ENTRIES * Format::bytes(P);
    static constexpr u32 PIECE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4; // bytes per copy
    static constexpr u32 PIECES = BYTES / PIECE;
    static constexpr u32 AT = Part<P - 1>::AT + TILE * Part<P - 1>::BYTES; // offset in the stage
    static constexpr u32 COPIES = (TILE * PIECES + THREADS - 1) / THREADS;  // per thread
    static constexpr u32 COPY = Part<P - 1>::COPY + Part<P - 1>::COPIES;    // index of the first one

    // Where a chunk begins within a row of the plane.
    __device__ static __forceinline__ u32 begin(u32 chunk) {
        return chunk * CHUNK / Format::elements(P) * Format::bytes(P) / PIECE * PIECE;
    }
};
template <> struct Part<-1> {
    static constexpr u32 BYTES = 0, AT = 0, COPIES = 0, COPY = 0;
};
constexpr int LAST = Format::PLANES - 1;
constexpr u32 W_BYTES = Part<LAST>::AT + TILE * Part<LAST>::BYTES;
constexpr u32 COPIES = Part<LAST>::COPY + Part<LAST>::COPIES;
constexpr u32 STAGE = (W_BYTES + X_BYTES + 127) / 128 * 128;

// Whether the weights of the next chunk are widened while this one is multiplied. Plain ones need no widening.
#ifdef PLAIN
constexpr bool EARLY = false;
#else
constexpr bool EARLY = STAGES > 2;
#endif

// The place of a 16-byte piece in its row of 16-bit weights. The eight lanes that read together then use different banks.
__device__ __forceinline__ u32 place(u32 row, u32 piece) {
#ifdef PLAIN
    if (Format::RAW_BYTES == 2) return piece ^ (piece >> 3) ^ (row & 1) << 1;
#endif
    return piece;
}

// The copies of a thread: the row of each piece, in units of 16 bytes from the start of the plane.
struct Copies {
    u32 rows[COPIES];

    template <int P = 0> __device__ __forceinline__ void aim(const GemmArgs& a, const Planes& planes, u32 first_n) {
        using part = Part<P>;
#pragma unroll
        for (u32 i = 0; i < part::COPIES; i++) {
            const u32 row = min((i * THREADS + threadIdx.x) / part::PIECES, TILE - 1);
            rows[part::COPY + i] = matrix_row(a, first_n, row) * (planes.stride[P] / 16);
        }
        if constexpr (P < LAST) aim<P + 1>(a, planes, first_n);
    }

    // Copies the weights of a chunk.
    template <int P = 0> __device__ __forceinline__ void start(const Planes& planes, u32 to, u32 chunk) const {
        using part = Part<P>;
        const u32 begin = part::begin(chunk);
#pragma unroll
        for (u32 i = 0; i < part::COPIES; i++) {
            const u32 index = i * THREADS + threadIdx.x, row = index / part::PIECES, piece = index % part::PIECES;
            if (TILE * part::PIECES % THREADS && index >= TILE * part::PIECES) break;
            const u32 at = begin + piece * part::PIECE, target = to + part::AT + row * part::BYTES + place(row, piece) * part::PIECE;
            const u8* const from = planes.start[P] + (u64)rows[part::COPY + i] * 16 + at;
            if (WHOLE) copy_async<part::PIECE>(target, from);
            else copy_async<part::PIECE>(target, from, at < planes.stride[P]);
        }
        if constexpr (P < LAST) start<P + 1>(planes, to, chunk);
    }
};

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

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BFLOAT
    mma_bf16(c, a, b0, b1);
#else
    mma_f16(c, a, b0, b1);
#endif
}

// Stores the sums of a tile. The values that they are added to are all loaded first.
__device__ __forceinline__ void store_sums(const GemmArgs& a, u32 first_n, u32 warp_n, u32 first_row, u32 live,
                                           const float (&sums)[WARP_N / 16][WARP_COLUMNS / 8][4]) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (a.epilogue == ACT_MUL) {
#pragma unroll
        for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
            for (u32 j = 0; j < WARP_COLUMNS / 8; j++) finish(a, nullptr, first_n, warp_n + 16 * i, first_row + 8 * j + 2 * t, live, sums[i][j]);
        return;
    }
    // Value q of four: matrix row g or g + 8 of sixteen, and one of two rows of y.
    auto column_of = [&](u32 i, u32 q) { return first_n + warp_n + 16 * i + g + q / 2 * 8; };
    auto row_of = [&](u32 j, u32 q) { return first_row + 8 * j + 2 * t + q % 2; };
    float before[WARP_N / 16][WARP_COLUMNS / 8][4];
#pragma unroll
    for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_COLUMNS / 8; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const bool wanted = a.epilogue == ADD && row_of(j, q) < live && column_of(i, q) < a.columns;
                before[i][j][q] = wanted ? __ldcg(row_of_y(a, nullptr, row_of(j, q)) + column_of(i, q)) : 0.0f;
            }
#pragma unroll
    for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
        for (u32 j = 0; j < WARP_COLUMNS / 8; j++)
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const float v = __fmul_rn(sums[i][j][q], a.scale);
                if (row_of(j, q) >= live || column_of(i, q) >= a.columns) continue;
                row_of_y(a, nullptr, row_of(j, q))[column_of(i, q)] = a.epilogue == ADD ? __fadd_rn(before[i][j][q], v) : v;
            }
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) columns(const __grid_constant__ ColumnsArgs args) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u32 arrived;
    const GemmArgs& a = args.gemm;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 per_tile = a.epilogue == ACT_MUL ? TILE / 2 : TILE;
    const u32 chunks = (a.k + CHUNK - 1) / CHUNK, units = (a.columns + per_tile - 1) / per_tile * chunks;
    const u32 blocks = gridDim.x, block = blockIdx.x;
    auto begin_of = [&](u32 of) { return (u32)((u64)units * of / blocks); };
    const u32 begin = begin_of(block), end = begin_of(block + 1);
    const Planes planes(a.weight, a.n, a.k);
    const u32 at = shared_address(shared);

    // The next unit to copy.
    u32 left = end - begin, tile_next = begin / chunks, chunk_next = begin % chunks, stage_next = 0;
    Copies copies;
    copies.aim(a, planes, tile_next * per_tile);
    auto advance = [&](u32& tile, u32& chunk, u32& stage) {
        if (++chunk == chunks) chunk = 0, tile++;
        if (++stage == STAGES) stage = 0;
    };
    {
        u32 tile = tile_next, chunk = chunk_next, stage = 0;
        for (u32 i = 0; i < min(STAGES - 1, left); i++) {
            copies.start(planes, at + stage * STAGE, chunk);
            advance(tile, chunk, stage);
            if (chunk == 0) copies.aim(a, planes, tile * per_tile);
        }
    }
    grid_release();
    grid_wait();
    const u32 live = a.step->live;
    if (a.step->ended || args.first >= live) return;
    const u8* x = (const u8*)a.x + (u64)args.first * 64;
    auto copy_x = [&] {
        const u32 to = at + stage_next * STAGE + W_BYTES;
        const u8* from = x + (u64)chunk_next * 4 * a.x_rows * 64;
#pragma unroll
        for (u32 i = 0; i < (X_BYTES / 16 + THREADS - 1) / THREADS; i++) {
            const u32 piece = i * THREADS + thread;
            if (X_BYTES / 16 < THREADS && piece >= X_BYTES / 16) break;
            copy_async<16>(to + piece * 16, from + (u64)(piece / (4 * COLUMNS)) * a.x_rows * 64 + piece % (4 * COLUMNS) * 16);
        }
    };
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (left > 0) {
            left--;
            copy_x();
            advance(tile_next, chunk_next, stage_next);
        }
        copy_commit();
    }
    auto copy_next = [&] {
        if (left > 0) {
            left--;
            copies.start(planes, at + stage_next * STAGE, chunk_next);
            copy_x();
            advance(tile_next, chunk_next, stage_next);
            if (chunk_next == 0) copies.aim(a, planes, tile_next * per_tile);
        }
        copy_commit();
    };

    const u32 warp_n = warp / ACROSS * WARP_N, warp_column = warp % ACROSS * WARP_COLUMNS;
    float sums[WARP_N / 16][WARP_COLUMNS / 8][4];
    auto clear = [&] {
#pragma unroll
        for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
            for (u32 j = 0; j < WARP_COLUMNS / 8; j++) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0.0f;
    };
    auto store = [&](u32 tile) { store_sums(a, tile * per_tile, warp_n, args.first + warp_column, live, sums); };
    clear();
    const u32 first_tile = begin / chunks;
    u32 tile = first_tile, chunk = begin % chunks, stage = 0, length = 0;
    auto take_all = [&](const u8* weights, u32 chunk, uint4(&out)[WARP_N / 16][2][4]) {
#pragma unroll
        for (u32 i = 0; i < WARP_N / 16; i++) {
            take(weights, warp_n + 16 * i + g, chunk, t, out[i][0]);
            take(weights, warp_n + 16 * i + g + 8, chunk, t, out[i][1]);
        }
    };
    uint4 wide[WARP_N / 16][2][4];
    if (EARLY) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        take_all(shared, chunk, wide);
    }
    for (u32 unit = begin; unit < end; unit++) {
        copy_wait<EARLY ? STAGES - 3 : STAGES - 2>();
        __syncthreads(); // all copies of the stage have arrived, and all threads have left the previous stage
        copy_next();
        const u8* const weights = shared + stage * STAGE;
        const u8* const operands = weights + W_BYTES + (warp_column + g) * 64 + t * 16;
        if (!EARLY) take_all(weights, chunk, wide);
        uint4 later[WARP_N / 16][2][4];
        if (EARLY) take_all(shared + (stage + 1 == STAGES ? 0 : stage + 1) * STAGE, chunk + 1 == chunks ? 0 : chunk + 1, later);
#pragma unroll
        for (u32 q = 0; q < 4; q++)
#pragma unroll
            for (u32 j = 0; j < WARP_COLUMNS / 8; j++) {
                const uint4 b = *(const uint4*)(operands + q * (COLUMNS * 64) + j * 512);
#pragma unroll
                for (u32 i = 0; i < WARP_N / 16; i++) {
                    const uint4 low = wide[i][0][q], high = wide[i][1][q];
                    multiply(sums[i][j], {low.x, high.x, low.y, high.y}, b.x, b.y);
                    multiply(sums[i][j], {low.z, high.z, low.w, high.w}, b.z, b.w);
                }
            }
        if (EARLY) {
#pragma unroll
            for (u32 i = 0; i < WARP_N / 16 * 8; i++) wide[i / 8][i / 4 % 2][i % 4] = later[i / 8][i / 4 % 2][i % 4];
        }
        length++;
        if (chunk + 1 == chunks || unit + 1 == end) {
            if (length == chunks) {
                store(tile);
            } else {
                float4* const mine = args.partials + (block * 2 + (tile != first_tile)) * (VALUES * THREADS) + thread;
#pragma unroll
                for (u32 v = 0; v < VALUES; v++) {
                    const float(&s)[4] = sums[v / (WARP_COLUMNS / 8)][v % (WARP_COLUMNS / 8)];
                    mine[v * THREADS] = make_float4(s[0], s[1], s[2], s[3]);
                }
                // The blocks that share the tile.
                const u32 from = (u32)(((u64)(tile * chunks + 1) * blocks - 1) / units);
                const u32 to = (u32)(((u64)(tile + 1) * chunks * blocks - 1) / units);
                __threadfence();
                __syncthreads();
                if (thread == 0) arrived = atomicAdd(args.counters + tile, 1);
                __syncthreads();
                if (arrived == to - from) {
                    __threadfence();
                    clear();
                    // Some sums of several blocks are in flight at once.
                    const bool late = begin_of(from) < tile * chunks;
                    for (u32 next = from; next <= to; next += FLIGHT) {
                        const float4* theirs[FLIGHT];
#pragma unroll
                        for (u32 o = 0; o < FLIGHT; o++) {
                            const u32 other = min(next + o, to);
                            theirs[o] = args.partials + (other * 2 + (other == from && late)) * (VALUES * THREADS) + thread;
                        }
#pragma unroll
                        for (u32 v = 0; v < VALUES; v++) {
                            float(&s)[4] = sums[v / (WARP_COLUMNS / 8)][v % (WARP_COLUMNS / 8)];
                            float4 more[FLIGHT];
#pragma unroll
                            for (u32 o = 0; o < FLIGHT; o++) more[o] = __ldcg(theirs[o] + v * THREADS);
#pragma unroll
                            for (u32 o = 0; o < FLIGHT; o++) {
                                if (next + o > to) continue;
                                s[0] += more[o].x, s[1] += more[o].y, s[2] += more[o].z, s[3] += more[o].w;
                            }
                        }
                    }
                    store(tile);
                    if (thread == 0) args.counters[tile] = 0;
                }
            }
            clear();
            length = 0;
        }
        advance(tile, chunk, stage);
    }
}
