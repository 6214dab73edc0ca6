// Products of the rows of a decode pass on tensor cores (columns.cuh), by the products of single warps.
//
// Macros: those of columns.cuh, COLUMNS (8, 16, 32, 64, 128), STAGES, RESIDENT (blocks per multiprocessor that registers must allow).
#define COPIERS 256
#include "columns.cuh"

constexpr u32 THREADS = MULTIPLIERS;
constexpr u32 ACROSS = COLUMNS >= 64 ? 2 : 1; // warps that share matrix rows
constexpr u32 WARP_N = 16 * ACROSS, WARP_COLUMNS = COLUMNS / ACROSS;
constexpr u32 VALUES = WARP_N / 16 * (WARP_COLUMNS / 8); // of four sums, per thread
constexpr u32 TOGETHER = WARP_COLUMNS >= 32 ? 4 : WARP_COLUMNS / 8; // of eight columns, whose products take turns
constexpr u32 FLIGHT = 4; // blocks whose sums are loaded at once
constexpr u32 UNROLLED = VALUES < 4 ? VALUES : 4;
constexpr u32 PARTIAL = VALUES * THREADS; // sums of a tile, in fours
constexpr u32 X_BYTES = COLUMNS * CHUNK * 2;
constexpr u32 PANEL = 64; // bytes of a row of x that lie together
constexpr u32 ALIGNMENT = 128; // of stages, and of x within a stage
constexpr u32 X_AT = round_up(W_BYTES, ALIGNMENT), STAGE = round_up(X_AT + X_BYTES, ALIGNMENT);

// Whether the weights of the next chunk are widened while this one is multiplied. Plain ones need no widening.
#if defined(PLAIN)
constexpr bool EARLY = false;
#else
constexpr bool EARLY = STAGES > 2;
#endif

// Where the rows of a thread's copies begin.
struct Copies {
    u32 rows[COPIES];

    template <int P = 0> __device__ __forceinline__ void aim(const GemmArgs& a, const Planes& planes, u32 first_n) {
        using part = Part<P>;
#pragma unroll
        for (u32 i = 0; i < part::COPIES; i++)
            rows[part::COPY + i] = matrix_row(a, first_n, part::row(i, threadIdx.x)) * (planes.stride[P] / 16);
        if constexpr (P < LAST) aim<P + 1>(a, planes, first_n);
    }

    __device__ __forceinline__ void start(const Planes& planes, u32 to, u32 chunk) const {
        copy_weights<COPIES>(planes, to, chunk, threadIdx.x, [&](int, u32 copy, u32) { return rows[copy]; });
    }
};

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BFLOAT
    mma_bf16(c, a, b0, b1);
#else
    mma_f16(c, a, b0, b1);
#endif
}

// Adds the sums of the blocks that share a tile, and stores the results. A loop with little code: it runs once per tile, and code that
// is not in the instruction cache is slow.
__device__ __forceinline__ void store_tile(const GemmArgs& a, const Sharing& from, u32 first_n, u32 warp_n, u32 first_row, u32 live) {
    const u32 t = threadIdx.x % 4;
#pragma unroll UNROLLED
    for (u32 v = 0; v < VALUES; v++) {
        const u32 n = warp_n + v / (WARP_COLUMNS / 8) * 16, row = first_row + v % (WARP_COLUMNS / 8) * 8 + 2 * t;
        store_value<FLIGHT>(a, from, 2 * PARTIAL, v, first_n, n, row, live);
    }
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) columns(const __grid_constant__ ColumnsArgs args) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u32 arrived;
    const GemmArgs& a = args.gemm;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const Run run(a);
    const u32 per_tile = run.per_tile, chunks = run.chunks, begin = run.begin, end = run.end;
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
        __syncthreads(); // all copies of the stage have arrived, and all threads have left the previous stage
        copy_next();
        const u8* const weights = shared + stage * STAGE;
        if (!EARLY) take_all(weights, chunk, wide);
        uint4 later[WARP_N / 16][2][4];
        if (EARLY) take_all(shared + (stage + 1 == STAGES ? 0 : stage + 1) * STAGE, chunk + 1 == chunks ? 0 : chunk + 1, later);
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
        if (EARLY) {
#pragma unroll
            for (u32 i = 0; i < WARP_N / 16 * 8; i++) wide[i / 8][i / 4 % 2][i % 4] = later[i / 8][i / 4 % 2][i % 4];
        }
        if (chunk + 1 == chunks || unit + 1 == end) {
            float4* const mine = args.partials + (blockIdx.x * 2 + (tile != first_tile)) * PARTIAL + thread;
#pragma unroll
            for (u32 v = 0; v < VALUES; v++) {
                const float(&s)[4] = sums[v / (WARP_COLUMNS / 8)][v % (WARP_COLUMNS / 8)];
                mine[v * THREADS] = make_float4(s[0], s[1], s[2], s[3]);
            }
            clear();
            const Sharing sharing(run, tile, args.partials, PARTIAL, thread);
            __threadfence();
            __syncthreads();
            if (thread == 0) arrived = atomicAdd(args.counters + tile, 1);
            __syncthreads();
            if (arrived == sharing.others) {
                __threadfence();
                store_tile(a, sharing, tile * per_tile, warp_n, args.first + warp_column, live);
                if (thread == 0) args.counters[tile] = 0;
            }
        }
        advance(tile, chunk, stage);
    }
}
