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
// WIDE: warp groups multiply, which adds in the same order (sm_90a). The weights are in registers as before, and x is read from shared
// memory by the product itself, in the layout of tile.cuh.
//
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else x is f16), COLUMNS (8, 16, 32, 64, 128, 256), WIDE (1 with 64 columns or
// more), WHOLE (1 where k is a multiple of CHUNK), STAGES, RESIDENT (blocks per multiprocessor that registers must allow).
#define EXPERTS 0
#include "dequant.cuh"
#include "gemm.cuh"
#if WIDE
#include "wgmma.cuh"
#endif

struct ColumnsArgs {
    GemmArgs gemm;
    float4* partials; // [block][first or last tile of its run][value][thread]
    u32* counters;    // of each tile; zero between kernels
    u32 first;        // row of x to start with
    u32 pad;
};

constexpr u32 TILE = 128, CHUNK = 128, THREADS = 256;
constexpr u32 ACROSS = COLUMNS >= 64 && !WIDE ? 2 : 1; // warps that share matrix rows
constexpr u32 WARP_N = 16 * ACROSS, WARP_COLUMNS = COLUMNS / ACROSS;
constexpr u32 VALUES = WARP_N / 16 * (WARP_COLUMNS / 8); // of four sums, per thread
[[maybe_unused]] constexpr u32 TOGETHER = WARP_COLUMNS >= 32 ? 4 : WARP_COLUMNS / 8; // of eight columns, whose products take turns
constexpr u32 FLIGHT = 4; // blocks whose sums are loaded at once
constexpr u32 UNROLLED = VALUES < 4 ? VALUES : 4;
constexpr u32 PARTIAL = VALUES * THREADS; // sums of a tile, in fours
constexpr u32 X_BYTES = COLUMNS * CHUNK * 2;
constexpr u32 PANEL = WIDE ? 128 : 64; // bytes of a row of x that lie together
constexpr u32 ALIGNMENT = WIDE ? 1024 : 128; // of stages, and of x within a stage

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
constexpr u32 X_AT = round_up(W_BYTES, ALIGNMENT), STAGE = round_up(X_AT + X_BYTES, ALIGNMENT);

// Whether the weights of the next chunk are widened while this one is multiplied. Plain ones need no widening. Products of warp groups
// own the registers of their operands until they are complete, and the compiler would wait for each.
#if defined(PLAIN) || WIDE
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

// Adds the sums of the blocks that share a tile, in the order of k, and stores the results. `first` is this thread's first
// value of the first block, `next` that of the second one; the others follow at `stride`. A loop with little code: it runs once per tile, and code that is
// not in the instruction cache is slow.
__device__ __forceinline__ void store_tile(const GemmArgs& a, const float4* first, const float4* next, u32 stride, u32 others, u32 first_n, u32 warp_n,
                                           u32 first_row, u32 live) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll UNROLLED
    for (u32 v = 0; v < VALUES; v++) {
        const u32 n = warp_n + v / (WARP_COLUMNS / 8) * 16, row = first_row + v % (WARP_COLUMNS / 8) * 8 + 2 * t;
        float before[4] = {};
        if (a.epilogue == ADD) {
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const u32 r = row + q % 2, column = first_n + n + g + q / 2 * 8;
                if (r < live && column < a.columns) before[q] = __ldcg(row_of_y(a, nullptr, r) + column);
            }
        }
        const float4 mine = __ldcg(first + v * THREADS);
        float s[4] = {mine.x, mine.y, mine.z, mine.w};
        for (u32 o = 0; o < others; o += FLIGHT) {
            float4 more[FLIGHT];
#pragma unroll
            for (u32 f = 0; f < FLIGHT; f++) more[f] = __ldcg(next + (u64)min(o + f, others - 1) * stride + v * THREADS);
#pragma unroll
            for (u32 f = 0; f < FLIGHT; f++) {
                if (o + f >= others) continue;
                s[0] += more[f].x, s[1] += more[f].y, s[2] += more[f].z, s[3] += more[f].w;
            }
        }
        if (a.epilogue == ACT_MUL) {
            finish(a, nullptr, nullptr, first_n, n, row, live, s);
            continue;
        }
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const u32 r = row + q % 2, column = first_n + n + g + q / 2 * 8;
            const float sum = __fmul_rn(s[q], a.scale);
            if (r < live && column < a.columns) row_of_y(a, nullptr, r)[column] = a.epilogue == ADD ? __fadd_rn(before[q], sum) : sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) columns(const __grid_constant__ ColumnsArgs args) {
    extern __shared__ __align__(128) u8 all_shared[];
    __shared__ u32 arrived;
    u8* const shared = all_shared + (round_up(shared_address(all_shared), ALIGNMENT) - shared_address(all_shared));
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
    const u8* x = (const u8*)a.x + (u64)args.first * PANEL;
    auto copy_x = [&] {
        const u32 to = at + stage_next * STAGE + X_AT;
        const u8* from = x + (u64)chunk_next * CHUNK * 2 * a.x_rows;
#pragma unroll
        for (u32 i = 0; i < (X_BYTES / 16 + THREADS - 1) / THREADS; i++) {
            const u32 piece = i * THREADS + thread;
            if (X_BYTES / 16 < THREADS && piece >= X_BYTES / 16) break;
            constexpr u32 PIECES = COLUMNS * PANEL / 16; // of all rows
            copy_async<16>(to + piece * 16, from + (u64)(piece / PIECES) * a.x_rows * PANEL + piece % PIECES * 16);
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
    clear();
    const u32 first_tile = begin / chunks;
    u32 tile = first_tile, chunk = begin % chunks, stage = 0;
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
        if (WIDE) show_to_async();
        __syncthreads(); // all copies of the stage have arrived, and all threads have left the previous stage
        copy_next();
        const u8* const weights = shared + stage * STAGE;
        if (!EARLY) take_all(weights, chunk, wide);
        uint4 later[WARP_N / 16][2][4];
        if (EARLY) take_all(shared + (stage + 1 == STAGES ? 0 : stage + 1) * STAGE, chunk + 1 == chunks ? 0 : chunk + 1, later);
#if WIDE
        // A panel has 64 elements of k, which are four products.
        const u64 operand = wgmma_operand(at + stage * STAGE + X_AT, 16, 1024);
        u32 rows[8][4];
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const uint4 low = wide[0][0][q], high = wide[0][1][q];
            rows[2 * q][0] = low.x, rows[2 * q][1] = high.x, rows[2 * q][2] = low.y, rows[2 * q][3] = high.y;
            rows[2 * q + 1][0] = low.z, rows[2 * q + 1][1] = high.z, rows[2 * q + 1][2] = low.w, rows[2 * q + 1][3] = high.w;
        }
        wgmma_begin();
#pragma unroll
        for (u32 j = 0; j < 8; j++) wgmma_rows<BFLOAT>(sums[0], rows[j], operand + j / 4 * (COLUMNS * PANEL / 16) + j % 4 * 2);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (u32 j = 0; j < COLUMNS / 8; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) wgmma_settled(sums[0][j][i]);
#else
        const u8* const operands = weights + X_AT + (warp_column + g) * 64 + t * 16;
#pragma unroll
        for (u32 q = 0; q < 4; q++)
#pragma unroll
            for (u32 j = 0; j < WARP_COLUMNS / 8; j += TOGETHER) {
                uint4 b[TOGETHER];
#pragma unroll
                for (u32 c = 0; c < TOGETHER; c++) b[c] = *(const uint4*)(operands + q * (COLUMNS * 64) + (j + c) * 512);
                // A product waits for the previous one with the same sums, so products with other sums come between.
#pragma unroll
                for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
                    for (u32 c = 0; c < TOGETHER; c++) {
                        const uint4 low = wide[i][0][q], high = wide[i][1][q];
                        multiply(sums[i][j + c], {low.x, high.x, low.y, high.y}, b[c].x, b[c].y);
                    }
#pragma unroll
                for (u32 i = 0; i < WARP_N / 16; i++)
#pragma unroll
                    for (u32 c = 0; c < TOGETHER; c++) {
                        const uint4 low = wide[i][0][q], high = wide[i][1][q];
                        multiply(sums[i][j + c], {low.z, high.z, low.w, high.w}, b[c].z, b[c].w);
                    }
            }
#endif
        if (EARLY) {
#pragma unroll
            for (u32 i = 0; i < WARP_N / 16 * 8; i++) wide[i / 8][i / 4 % 2][i % 4] = later[i / 8][i / 4 % 2][i % 4];
        }
        if (chunk + 1 == chunks || unit + 1 == end) {
            float4* const mine = args.partials + (block * 2 + (tile != first_tile)) * PARTIAL + thread;
#pragma unroll
            for (u32 v = 0; v < VALUES; v++) {
                const float(&s)[4] = sums[v / (WARP_COLUMNS / 8)][v % (WARP_COLUMNS / 8)];
                mine[v * THREADS] = make_float4(s[0], s[1], s[2], s[3]);
            }
            clear();
            // The blocks that share the tile.
            const u32 from = (u32)(((u64)(tile * chunks + 1) * blocks - 1) / units);
            const u32 to = (u32)(((u64)(tile + 1) * chunks * blocks - 1) / units);
            __threadfence();
            __syncthreads();
            if (thread == 0) arrived = atomicAdd(args.counters + tile, 1);
            __syncthreads();
            if (arrived == to - from) {
                __threadfence();
                // The first of them may have begun with another tile.
                const float4* const first = args.partials + (from * 2 + (begin_of(from) / chunks != tile)) * PARTIAL + thread;
                const float4* const next = args.partials + (u64)(from + 1) * 2 * PARTIAL + thread;
                store_tile(a, first, next, 2 * PARTIAL, to - from, tile * per_tile, warp_n, args.first + warp_column, live);
                if (thread == 0) args.counters[tile] = 0;
            }
        }
        advance(tile, chunk, stage);
    }
}
