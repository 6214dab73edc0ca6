// Products of the rows of a decode pass, or of any pass with FP8 activations, on GPUs with warp-group products (sm_90a):
// y[row][n] = sum over k of W[n][k] x[row][k].
//
// The definition of a sum: k is cut into chunks (of 64 elements, 256 of FP8), and the chunks into eight runs. A run is one chain of
// tensor-core products, in the order of k. The runs are added in order. How a matrix is cut into tiles, and which blocks take which runs
// of a tile, changes no bit, and neither does the number of rows. So each product and number of rows has the tiles that suit the GPU.
//
// FP8 weights (FLOAT8) are multiplied with activations in FP8. A row of x has one scale for all of k. So has a matrix row, unless SCALED:
// then each half of a chunk has its own, with which its sums are added to those of the run.
//
// A block has TILE_N matrix rows and 64 * GROUPS rows of x. One thread copies both into a ring of stages of a chunk each. Warp groups
// multiply: the rows of x are the first operand. A cluster has all runs of a tile (SPLIT blocks, which add up through their shared memory),
// and may have two tiles of rows (ROW_TILES blocks), which share the copies of weights.
//
// Macros: FORMAT_FILE, BFLOAT (1: weights and x are bf16, else f16), FLOAT8 (1: both are FP8), SCALED, TILE_N, GROUPS (1, 2),
// SPLIT (1, 4, 8), ROW_TILES (1, 2), STAGES, RESIDENT (blocks per multiprocessor that registers must allow).
#define EXPERTS 0
#include "dequant.cuh"
#include "gemm.cuh"
#include "tile.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // other GPUs have no warp-group products
#include "wgmma.cuh"

struct alignas(64) TensorMap {
    u64 words[16];
};

// The planes of the integers of FP8 weights: of every 32, the first and the second sixteen (format/f8_e4m3.cuh).
constexpr u32 PLANES = FLOAT8 ? 2 : 1;

struct EighthsArgs {
    TensorMap maps[PLANES]; // of the weights: boxes of TILE_N / 2 rows of a chunk
    GemmArgs gemm;
#if FLOAT8
    const float* scales;   // of the weights: [n][scale_stride], one for each 128 elements, all equal unless SCALED
    const float* x_scales; // of the rows of x
    u32 scale_stride, pad[11];
#endif
};

constexpr u32 CHUNK = FLOAT8 ? 256 : 64, RUNS = 8;
constexpr u32 HALVES = SCALED ? 2 : 1; // of a chunk, with sums of their own
constexpr u32 STEPS = 4 * PLANES;      // of warp-group products: 32 bytes of a row each
constexpr u32 HERE = RUNS / SPLIT; // runs of a block
static_assert(HERE <= 2 || SPLIT == 1, "a block publishes one run or two");
constexpr u32 PUBLISHED = SPLIT == 1 ? 1 : HERE; // sums per value that a block leaves in its shared memory
constexpr u32 ROWS = 64 * GROUPS; // of x
constexpr u32 MULTIPLIERS = 128 * GROUPS, WARPS = MULTIPLIERS / 32;
constexpr u32 CLUSTER = SPLIT * ROW_TILES;
constexpr u32 HALF = TILE_N / 2 * 128; // bytes of a box
constexpr u32 W_PLANE = 2 * HALF, X_PLANE = ROWS * 128;
constexpr u32 W_BYTES = PLANES * W_PLANE, X_BYTES = PLANES * X_PLANE, STAGE = W_BYTES + X_BYTES;
constexpr u32 EIGHTS = TILE_N / 8; // of matrix rows: values of four sums per thread
constexpr u32 COPIERS = 128; // threads of the first warp group: one copies, and the last three warps load scales
constexpr u32 SCALERS = SCALED ? COPIERS - 32 : 0;
// Registers of a thread of the first warp group and of a multiplying one. All begin with an even share.
constexpr u32 KEPT = 40, SHARE = 65536 / (RESIDENT * (MULTIPLIERS + COPIERS)) / 8 * 8;
constexpr u32 LEFT = (SHARE * (GROUPS + 1) - KEPT) / GROUPS / 8 * 8, TAKEN = LEFT < 240 ? LEFT : 240;
static_assert(TILE_N % 16 == 0, "two boxes of whole swizzles");

// A block's place among the others.
struct Place {
    u32 row_tile, split; // within the cluster
    u32 first_n, first_row;

    __device__ __forceinline__ Place(const EighthsArgs& a) {
        const u32 rank = blockIdx.x % CLUSTER;
        row_tile = rank % ROW_TILES, split = rank / ROW_TILES;
        first_n = blockIdx.x / CLUSTER * (a.gemm.epilogue == ACT_MUL ? TILE_N / 2 : TILE_N);
        first_row = (blockIdx.y * ROW_TILES + row_tile) * ROWS;
    }
    // The rank in the cluster of the block with the same rows and other runs, and with the same runs and other rows.
    __device__ __forceinline__ u32 with_split(u32 other) const { return other * ROW_TILES + row_tile; }
    __device__ __forceinline__ u32 with_row_tile(u32 other) const { return split * ROW_TILES + other; }
    // The cluster's first row.
    __device__ __forceinline__ u32 base() const { return first_row - row_tile * ROWS; }
};

struct Ring {
    u32 stages, barriers, scales; // HALVES * TILE_N for each stage, or TILE_N for all
    u32 stage = 0, parity = 0;

    __device__ __forceinline__ u32 x() const { return stages + stage * STAGE; }
    __device__ __forceinline__ u32 weights() const { return x() + X_BYTES; }
    __device__ __forceinline__ u32 scale(u32 row, u32 half) const { return scales + ((SCALED ? stage * HALVES + half : 0) * TILE_N + row) * 4; }
    __device__ __forceinline__ u32 full() const { return barriers + stage * 8; }
    __device__ __forceinline__ u32 empty() const { return full() + STAGES * 8; }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Where run `run` begins.
__device__ __forceinline__ u32 run_begin(u32 chunks, u32 run) { return chunks * run / RUNS; }

// True if this cluster has no rows. Known after grid_wait().
__device__ __forceinline__ bool nothing_to_do(const EighthsArgs& args, const Place& place) { return args.gemm.step->ended || place.base() >= args.gemm.step->live; }

// Rows of x to copy. A tile of rows without a live one copies weights for its neighbour, and some rows that are not used.
__device__ __forceinline__ u32 rows_of(const EighthsArgs& args, const Place& place) {
    const u32 live = args.gemm.step->live;
    return place.first_row >= live ? 8 : min(round_up(live - place.first_row, 8), ROWS);
}

// Matrix rows from the first half of a tile to the second.
__device__ __forceinline__ u32 second_half(const GemmArgs& a) { return a.epilogue == ACT_MUL ? a.columns : TILE_N / 2; }

struct Copier {
    const EighthsArgs& args;
    Place place;
    u64 once, again; // cache policies

    __device__ __forceinline__ void weights(const Ring& ring, u32 chunk) const {
        const u32 second = second_half(args.gemm);
#pragma unroll
        for (u32 p = 0; p < PLANES; p++) {
            const u32 to = ring.weights() + p * W_PLANE, column = chunk * (CHUNK / PLANES);
            if constexpr (ROW_TILES == 1) {
                copy_box(once, to, &args.maps[p], column, place.first_n, ring.full());
                copy_box(once, to + HALF, &args.maps[p], column, place.first_n + second, ring.full());
            } else {
                // Each of the two blocks copies a half for both.
                const u32 half = place.row_tile, both = 1u << place.with_row_tile(0) | 1u << place.with_row_tile(1);
                copy_box_to((u16)both, once, to + half * HALF, &args.maps[p], column, place.first_n + half * second, ring.full());
            }
        }
    }

    // Announces the bytes of a stage, and copies x.
    __device__ __forceinline__ void x(const Ring& ring, u32 chunk, u32 rows) const {
        const GemmArgs& a = args.gemm;
        mbarrier_expect(ring.full(), W_BYTES + PLANES * rows * 128);
#pragma unroll
        for (u32 p = 0; p < PLANES; p++)
            copy_bulk_by(again, ring.x() + p * X_PLANE, (const u8*)a.x + ((u64)(chunk * PLANES + p) * a.x_rows + place.first_row) * 128, rows * 128, ring.full());
    }
};

// One thread copies all. Weights do not depend on other kernels, so the first stages are requested before the wait.
__device__ __forceinline__ void copy_all(const EighthsArgs& args, const Place& place, Ring ring, u32 begin, u32 end) {
    const Copier copier = {args, place, read_once(), read_again()};
    const u32 early = min(begin + STAGES, end);
    Ring first = ring;
    for (u32 chunk = begin; chunk < early; chunk++) {
        copier.weights(first, chunk);
        first.advance();
    }
    grid_wait();
    if (nothing_to_do(args, place)) {
        // A block may not leave while copies to it are in flight.
        for (u32 chunk = begin; chunk < early; chunk++) {
            mbarrier_expect(ring.full(), W_BYTES);
            barrier_wait(ring.full(), ring.parity);
            ring.advance();
        }
        return;
    }
    const u32 rows = rows_of(args, place);
    for (u32 chunk = begin; chunk < end; chunk++) {
        if (chunk >= early) {
            barrier_wait(ring.empty(), ring.parity ^ 1);
            copier.weights(ring, chunk);
        }
        copier.x(ring, chunk, rows);
        ring.advance();
    }
}

#if FLOAT8
// The scales of a matrix row of the tile.
__device__ __forceinline__ const float* scales_of(const EighthsArgs& args, const Place& place, u32 row) {
    const u32 half = row / (TILE_N / 2), n = place.first_n + half * second_half(args.gemm) + row % (TILE_N / 2);
    return args.scales + (u64)min(n, args.gemm.n - 1) * args.scale_stride;
}
#endif

#if SCALED
// Loads the scales of all chunks, two chunks ahead. Each warp announces its part of a stage.
__device__ __forceinline__ void load_scales(const EighthsArgs& args, const Place& place, Ring ring, u32 begin, u32 end) {
    constexpr u32 EACH = (TILE_N + SCALERS - 1) / SCALERS, AHEAD = 2;
    const u32 thread = threadIdx.x - 32, last = args.scale_stride - 1;
    const float* rows[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) rows[i] = scales_of(args, place, min(thread + i * SCALERS, TILE_N - 1));
    float ahead[AHEAD][EACH][HALVES];
    auto load = [&](u32 slot, u32 chunk) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) ahead[slot][i][h] = __ldg(rows[i] + min(chunk * HALVES + h, last));
    };
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) load(i, begin + i);
    grid_wait();
    if (nothing_to_do(args, place)) end = min(begin + STAGES, end);
#pragma unroll 1
    for (u32 first = begin; first < end; first += AHEAD) {
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 chunk = first + a;
            if (chunk >= end) break;
            if (chunk >= begin + STAGES) barrier_wait(ring.empty(), ring.parity ^ 1);
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
#pragma unroll
                for (u32 h = 0; h < HALVES; h++)
                    if (thread + i * SCALERS < TILE_N) store_shared(ring.scale(thread + i * SCALERS, h), ahead[a][i][h]);
            load(a, chunk + AHEAD);
            __syncwarp();
            mbarrier_arrive_if(threadIdx.x % 32 == 0, ring.full());
            ring.advance();
        }
    }
}
#endif

__device__ __forceinline__ float4 as_floats(uint4 v) { return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)); }

// The warp groups that multiply.
struct Multiplier {
    const EighthsArgs& args;
    Place place;
    Ring ring;
    u32 thread;
    float row_scales[2]; // of the thread's two rows
    float sums[EIGHTS][4], total[EIGHTS][4];
#if SCALED
    float products[EIGHTS][4]; // of a chunk
#endif

    // The first of the thread's rows of x; the other is eight rows after it.
    __device__ __forceinline__ u32 first_row() const { return place.first_row + thread / 32 * 16 + thread % 32 / 4; }

    __device__ __forceinline__ void load_row_scales() {
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#if FLOAT8
            row_scales[i] = __ldcg(args.x_scales + first_row() + 8 * i);
#else
            row_scales[i] = args.gemm.scale;
#endif
    }

    // Lets the copiers refill a stage.
    __device__ __forceinline__ void release(u32 empty) const {
        const u32 lane = thread % 32;
        if constexpr (ROW_TILES == 1) mbarrier_arrive_if(lane == 0, empty);
        else mbarrier_arrive_at(lane < ROW_TILES, empty, place.with_row_tile(lane % ROW_TILES));
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    }

    // The products of step `k` of a chunk, added to sums. A half of a chunk has its steps in turn, in both planes.
    __device__ __forceinline__ void add_products(float (&to)[EIGHTS][4], u32 k, u32 add) const {
        const u32 plane = PLANES == 2 ? k % 4 / 2 : 0, step = PLANES == 2 ? k / 4 * 2 + k % 2 : k;
        const u64 x = wgmma_operand(ring.x() + plane * X_PLANE + thread / 128 * (64 * 128), 16, 1024) + 2 * step;
        const u64 w = wgmma_operand(ring.weights() + plane * W_PLANE, 16, 1024) + 2 * step;
#if FLOAT8
        wgmma_tile_e4m3(to, x, w, add);
#else
        wgmma_tile<BFLOAT>(to, x, w, add);
#endif
    }

#if SCALED
    // A run: the products of each half of a chunk times the matrix rows' scales, added in the order of k.
    __device__ __forceinline__ void multiply(u32 chunks) {
        clear();
#pragma unroll 1
        for (u32 i = 0; i < chunks; i++) {
            barrier_wait(ring.full(), ring.parity);
#pragma unroll
            for (u32 h = 0; h < HALVES; h++) {
                wgmma_begin();
#pragma unroll
                for (u32 k = 0; k < STEPS / HALVES; k++) add_products(products, h * (STEPS / HALVES) + k, k > 0);
                wgmma_commit();
                wgmma_wait<0>();
#pragma unroll
                for (u32 j = 0; j < EIGHTS; j++) {
                    const float2 d = load_shared_pair(ring.scale(8 * j + thread % 4 * 2, h));
#pragma unroll
                    for (u32 v = 0; v < 4; v++) {
                        wgmma_settled(products[j][v]);
                        sums[j][v] = fmaf(v % 2 ? d.y : d.x, products[j][v], sums[j][v]);
                    }
                }
            }
            __syncwarp(); // all lanes have read the scales
            release(ring.empty());
            ring.advance();
        }
    }
#else
    // The chain of a run.
    __device__ __forceinline__ void multiply(u32 chunks) {
        clear();
        u32 before = 0;
#pragma unroll 1
        for (u32 i = 0; i < chunks; i++) {
            barrier_wait(ring.full(), ring.parity);
            wgmma_begin();
#pragma unroll
            for (u32 k = 0; k < STEPS; k++) add_products(sums, k, 1);
            wgmma_commit();
            wgmma_wait<1>();
            if (i > 0) release(before);
            before = ring.empty();
            ring.advance();
        }
        wgmma_wait<0>();
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) wgmma_settled(sums[j][i]);
        if (chunks > 0) release(before);
    }
#endif

    // Adds a run to those before it.
    __device__ __forceinline__ void add_run() {
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) total[j][i] += sums[j][i];
    }

    __device__ __forceinline__ void keep_run() {
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) total[j][i] = sums[j][i];
    }

    // Stores two neighbours of a row of y.
    __device__ __forceinline__ void store(u32 row, u32 column, float a, float b, u32 live, bool pairs) const {
        const GemmArgs& g = args.gemm;
        if (row >= live || column >= g.columns) return;
        float* const y = row_of_y(g, nullptr, row) + column;
        if (pairs) {
            if (g.epilogue == ADD) {
                const float2 v = *(const float2*)y;
                a = __fadd_rn(v.x, a), b = __fadd_rn(v.y, b);
            }
            *(float2*)y = make_float2(a, b);
            return;
        }
        y[0] = g.epilogue == ADD ? __fadd_rn(y[0], a) : a;
        if (column + 1 < g.columns) y[1] = g.epilogue == ADD ? __fadd_rn(y[1], b) : b;
    }

    // Scales the sums of value `j`.
    __device__ __forceinline__ void scale(u32 j, float (&s)[4]) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) s[i] = __fmul_rn(s[i], row_scales[i / 2]);
#if FLOAT8 && !SCALED
        const float2 d = load_shared_pair(ring.scale(8 * j + thread % 4 * 2, 0));
#pragma unroll
        for (u32 i = 0; i < 4; i++) s[i] = __fmul_rn(s[i], i % 2 ? d.y : d.x);
#endif
    }

    // The results of value `j`: of the rows g and g + 8 of a warp's sixteen, two neighbours each. With ACT_MUL `up` is the value of the
    // same columns in the second half of the tile.
    __device__ __forceinline__ void finish(u32 j, float (&v)[4], float (&up)[4], u32 live, bool pairs) const {
        const GemmArgs& g = args.gemm;
        const u32 row = first_row(), column = place.first_n + 8 * j + thread % 4 * 2;
        scale(j, v);
        if (g.epilogue == ACT_MUL) {
            scale(j + EIGHTS / 2, up);
#pragma unroll
            for (u32 i = 0; i < 4; i++) v[i] = gated(g.act, v[i], up[i]);
        }
        store(row, column, v[0], v[1], live, pairs);
        store(row + 8, column, v[2], v[3], live, pairs);
    }

    // Adds up the runs of all blocks of the tile: value `j`.
    __device__ __forceinline__ void add_up(u32 at, u32 j, float (&s)[4]) const {
        constexpr u32 PARTS = SPLIT * PUBLISHED;
        float4 parts[PARTS];
#pragma unroll
        for (u32 p = 0; p < PARTS; p++) {
            const u32 from = at + ((p % PUBLISHED * EIGHTS + j) * MULTIPLIERS + thread) * 16;
            parts[p] = SPLIT == 1 ? as_floats(load_shared(from)) : load_from_block(from, place.with_split(p / PUBLISHED));
        }
        s[0] = parts[0].x, s[1] = parts[0].y, s[2] = parts[0].z, s[3] = parts[0].w;
#pragma unroll
        for (u32 p = 1; p < PARTS; p++) s[0] += parts[p].x, s[1] += parts[p].y, s[2] += parts[p].z, s[3] += parts[p].w;
    }

    __device__ __forceinline__ void publish(u32 at, u32 run, const float (&s)[EIGHTS][4]) const {
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++)
            store_shared(at + ((run * EIGHTS + j) * MULTIPLIERS + thread) * 16,
                         make_uint4(__float_as_uint(s[j][0]), __float_as_uint(s[j][1]), __float_as_uint(s[j][2]), __float_as_uint(s[j][3])));
    }
};

// Blocks of a cluster leave together: they read each other's shared memory, and copy to it.
__device__ __forceinline__ void leave(bool added_up) {
    if (SPLIT > 1 && !added_up) cluster_sync();
    if (CLUSTER > 1) cluster_sync();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MULTIPLIERS + COPIERS, RESIDENT) eighths(const __grid_constant__ EighthsArgs args) {
    extern __shared__ __align__(1024) u8 all_shared[];
    const u32 stages = round_up(shared_address(all_shared), 1024);
    const u32 barriers = stages + STAGES * STAGE;
    const Ring ring = {stages, barriers, barriers + STAGES * 16};
    const Place place(args);
    const GemmArgs& a = args.gemm;
    const u32 chunks = (a.k + CHUNK - 1) / CHUNK, first_run = place.split * HERE;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            mbarrier_init(ring.barriers + 8 * i, 1 + SCALERS / 32);
            mbarrier_init(ring.barriers + 8 * (STAGES + i), WARPS * ROW_TILES);
        }
        mbarriers_ready();
    }
    if (ROW_TILES > 1) cluster_sync(); // the other block copies to this one
    else __syncthreads();
    grid_release();
    if (threadIdx.x < COPIERS) {
        fewer_registers<KEPT>();
        const u32 begin = run_begin(chunks, first_run), end = run_begin(chunks, first_run + HERE);
        if (threadIdx.x == 0) copy_all(args, place, ring, begin, end);
#if SCALED
        if (threadIdx.x >= 32) load_scales(args, place, ring, begin, end);
#endif
        __syncwarp();
        leave(false);
        return;
    }
    more_registers<TAKEN>();
#if FLOAT8 && !SCALED
    for (u32 row = threadIdx.x - COPIERS; row < TILE_N; row += MULTIPLIERS) store_shared(ring.scale(row, 0), __ldg(scales_of(args, place, row)));
#endif
    grid_wait();
    if (nothing_to_do(args, place)) {
        leave(false);
        return;
    }
    const u32 live = a.step->live;
    Multiplier m = {args, place, ring, threadIdx.x - COPIERS};
    u32 begin = run_begin(chunks, first_run), end = run_begin(chunks, first_run + 1);
    m.multiply(end - begin);
    if (HERE > 1) {
        m.keep_run();
#pragma unroll 1
        for (u32 run = first_run + 1; run < first_run + HERE; run++) {
            begin = end, end = run_begin(chunks, run + 1);
            m.multiply(end - begin);
            if (SPLIT == 1) m.add_run();
        }
    }
    m.load_row_scales();
    bar_sync<1, MULTIPLIERS>(); // no warp reads the stages any more
    if (HERE > 1) m.publish(ring.stages, 0, m.total);
    if (SPLIT > 1) m.publish(ring.stages, PUBLISHED - 1, m.sums), cluster_sync();
    const bool pairs = (a.columns | a.y_stride) % 2 == 0 && (u64)a.y % 8 == 0;
    const u32 values = a.epilogue == ACT_MUL ? EIGHTS / 2 : EIGHTS;
#pragma unroll 2
    for (u32 j = place.split; j < values; j += SPLIT) {
        float s[4], up[4] = {};
        m.add_up(ring.stages, j, s);
        if (a.epilogue == ACT_MUL) m.add_up(ring.stages, j + EIGHTS / 2, up);
        m.finish(j, s, up, live, pairs);
    }
    leave(true);
}

#endif
