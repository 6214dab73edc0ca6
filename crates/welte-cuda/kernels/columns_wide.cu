// Products of the rows of a decode pass (columns.cuh) on GPUs with warp-group products (sm_90a). Computes the same bits as columns.cu.
// One warp group copies: two warps the weights, one warp x. Two warp groups multiply: they widen weights in registers, and the products
// read x in shared memory. Weights and x have a ring each, with barriers per stage, so no thread waits for more than its stage.
//
// Macros: those of columns.cuh, COLUMNS (64, 128, 256), STAGES (of the ring of weights, chunks), PANELS (of the ring of x, half chunks).
#define COPIERS 64
#include "columns.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // other GPUs have no warp-group products
#include "wgmma.cuh"

constexpr u32 GROUP_THREADS = 128;   // of a warp group; the first one copies
constexpr u32 X_COPIER = COPIERS;    // the thread that copies x
constexpr u32 EIGHTS = COLUMNS / 8;  // of columns: values of four sums per thread
constexpr u32 PARTIAL = EIGHTS * MULTIPLIERS; // sums of a tile, in fours
constexpr u32 PANEL_BYTES = COLUMNS * 128;    // 64 elements of k
constexpr u32 W_STAGE = round_up(W_BYTES, 128);
constexpr u32 WARPS = MULTIPLIERS / 32;
constexpr u32 FLIGHT = 8; // blocks whose sums are loaded at once
// Whether the weights of the next chunk are widened while this one is multiplied. With more columns registers do not suffice, and the two
// warp groups take turns.
constexpr bool AHEAD = COLUMNS <= 128;
// Registers of a copying thread and of a multiplying one. All three warp groups begin with 168 per thread.
constexpr u32 KEPT = 72, TAKEN = (3 * 168 - KEPT) / 2;

// The barriers of a ring: "full" for each stage, then "empty" for each stage.
template <u32 LENGTH> struct Ring {
    u32 barriers, stage = 0, parity = 0;

    __device__ __forceinline__ Ring(u32 barriers) : barriers(barriers) {}
    __device__ __forceinline__ u32 full() const { return barriers + stage * 8; }
    __device__ __forceinline__ u32 empty() const { return full() + LENGTH * 8; }
    __device__ __forceinline__ void await_full() const { barrier_wait(full(), parity); }
    __device__ __forceinline__ void await_empty() const { barrier_wait(empty(), parity ^ 1); }
    __device__ __forceinline__ void advance() {
        if (++stage == LENGTH) stage = 0, parity ^= 1;
    }
};
typedef Ring<STAGES> WeightRing;
typedef Ring<PANELS> XRing;

// True if there are no rows to multiply. Known after grid_wait().
__device__ __forceinline__ bool nothing_to_do(const ColumnsArgs& args) { return args.gemm.step->ended || args.first >= args.gemm.step->live; }

// Copies the weights of the block's chunks. The first chunks fill the ring while other kernels run: weights depend on none.
__device__ __forceinline__ void copy_all_weights(const ColumnsArgs& args, const Run& run, u32 to, WeightRing ring) {
    const GemmArgs& a = args.gemm;
    const Planes planes(a.weight, a.n, a.k);
    const u32 copier = threadIdx.x;
    u32 chunk = run.begin % run.chunks, first_n = run.begin / run.chunks * run.per_tile;
    for (u32 unit = run.begin; unit < run.end; unit++) {
        if (unit == run.begin + STAGES) {
            grid_wait();
            if (nothing_to_do(args)) return;
        }
        ring.await_empty();
        auto offset = [&](int plane, u32, u32 row) { return matrix_row(a, first_n, row) * (planes.stride[plane] / 16); };
        copy_weights<4>(planes, to + ring.stage * W_STAGE, chunk, copier, offset);
        arrive_after_copies(ring.full());
        ring.advance();
        if (++chunk == run.chunks) chunk = 0, first_n += run.per_tile;
    }
}

// Copies x: one thread, with a bulk copy per panel.
__device__ __forceinline__ void copy_all_x(const GemmArgs& a, const Run& run, u32 first_row, u32 to, XRing ring) {
    const u8* const x = (const u8*)a.x + (u64)first_row * 128;
    u32 chunk = run.begin % run.chunks;
    for (u32 unit = run.begin; unit < run.end; unit++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            ring.await_empty();
            mbarrier_expect(ring.full(), PANEL_BYTES);
            copy_bulk(to + ring.stage * PANEL_BYTES, x + (u64)(chunk * 2 + half) * a.x_rows * 128, PANEL_BYTES, ring.full());
            ring.advance();
        }
        if (++chunk == run.chunks) chunk = 0;
    }
}

// A tile's counter, while several blocks share the tile. Each of them arrives once its sums are stored. Once all have arrived, blocks claim
// shares of the values, add them up and store the results. Each leaves once it claims no more, and the last to leave clears the counter.
// A block that waits too long claims nothing. The last one to arrive does not wait, and claims until nothing is left: no block depends on
// others that have not begun yet.
struct Tally {
    static constexpr u32 ARRIVAL = 1, LEAVING = 1 << 10, CLAIM = 1 << 20;
    u32* counter;
    u32 blocks; // that share the tile

    __device__ __forceinline__ bool all_arrived() const {
#pragma unroll 1
        for (u32 tries = 0; tries < 2000; tries++) {
            if (load_acquire(counter) % LEAVING == blocks) return true;
        }
        return false;
    }
    // The number of the next share.
    __device__ __forceinline__ u32 claim() const { return atomicAdd(counter, CLAIM) / CLAIM; }
    __device__ __forceinline__ void leave() const {
        if (atomicAdd(counter, LEAVING) / LEAVING % LEAVING + 1 == blocks) *counter = 0;
    }
};

struct Multiplier {
    const ColumnsArgs& args;
    const Run& run;
    const u8* shared; // the ring of weights
    u32 x;            // the ring of x
    WeightRing weights;
    XRing panels;
    u32 live;
    u32 thread, warp, lane;
    u32* told; // by one thread to all
    float sums[EIGHTS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    }

    // Waits for the weights of the next chunk and widens them.
    __device__ __forceinline__ void take_next(u32 chunk, u32 (&rows)[8][4]) {
        weights.await_full();
        const u8* const stage = shared + weights.stage * W_STAGE;
        uint4 low[4], high[4];
        take(stage, 16 * warp + lane / 4, chunk, lane % 4, low);
        take(stage, 16 * warp + lane / 4 + 8, chunk, lane % 4, high);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(weights.empty());
        weights.advance();
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            rows[2 * q][0] = low[q].x, rows[2 * q][1] = high[q].x, rows[2 * q][2] = low[q].y, rows[2 * q][3] = high[q].y;
            rows[2 * q + 1][0] = low[q].z, rows[2 * q + 1][1] = high[q].z, rows[2 * q + 1][2] = low[q].w, rows[2 * q + 1][3] = high[q].w;
        }
    }

    // Starts the products of a chunk.
    __device__ __forceinline__ void multiply(const u32 (&rows)[8][4]) {
        XRing ring = panels;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            ring.await_full();
            const u64 operand = wgmma_operand(x + ring.stage * PANEL_BYTES, 16, 1024);
            wgmma_begin();
#pragma unroll
            for (u32 j = 0; j < 4; j++) wgmma_rows<BFLOAT>(sums, rows[4 * half + j], operand + 2 * j);
            ring.advance();
        }
        wgmma_commit();
    }

    // Waits for the products, and releases their panels.
    __device__ __forceinline__ void settle() {
        wgmma_wait<0>();
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) wgmma_settled(sums[j][i]);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (lane == 0) mbarrier_arrive(panels.empty());
            panels.advance();
        }
    }

    // The products of some chunks of a tile.
    __device__ __forceinline__ void multiply_all(u32 chunk, u32 count) {
        u32 even[8][4], odd[8][4];
        if (!AHEAD) {
            for (; count > 0; count--) {
                take_next(chunk++, even);
                multiply(even);
                settle();
            }
            return;
        }
        take_next(chunk, even);
        while (true) {
            multiply(even);
            if (--count == 0) break;
            take_next(++chunk, odd);
            settle();
            multiply(odd);
            if (--count == 0) break;
            take_next(++chunk, even);
            settle();
        }
        settle();
    }

    // Where this thread's sums of a tile are stored.
    __device__ __forceinline__ float4* partials(u32 tile) const {
        return args.partials + (blockIdx.x * 2 + (tile != run.begin / run.chunks)) * PARTIAL + thread;
    }

    // Stores some values of a tile.
    __device__ __forceinline__ void store(u32 tile, const Sharing& sharing, u32 from, u32 to) const {
#pragma unroll 2
        for (u32 v = from; v < to; v++)
            store_value<FLIGHT>(args.gemm, sharing, 2 * PARTIAL, v, tile * run.per_tile, 16 * warp, args.first + v * 8 + 2 * (lane % 4), live);
    }

    __device__ __forceinline__ Sharing sharing(u32 tile) const { return Sharing(run, tile, args.partials, PARTIAL, thread); }
    __device__ __forceinline__ Tally tally(u32 tile, const Sharing& sharing) const { return Tally{args.counters + tile, sharing.others + 1}; }

    // The end of the block's chunks of a tile. Returns whether it is the last block of them.
    __device__ __forceinline__ bool end_tile(u32 tile) {
        float4* const mine = partials(tile);
#pragma unroll
        for (u32 v = 0; v < EIGHTS; v++) mine[v * MULTIPLIERS] = make_float4(sums[v][0], sums[v][1], sums[v][2], sums[v][3]);
        clear();
        const Sharing of = sharing(tile);
        if (of.others == 0) {
            store(tile, of, 0, EIGHTS);
            return false;
        }
        __threadfence();
        bar_sync<1, MULTIPLIERS>();
        return thread == 0 && atomicAdd(args.counters + tile, Tally::ARRIVAL) % Tally::LEAVING == of.others;
    }

    // Adds up a share of a tile's sums; `last` is what end_tile() returned.
    __device__ __forceinline__ void add_up(u32 tile, bool last) {
        const Sharing of = sharing(tile);
        if (of.others == 0) return;
        const Tally tally = this->tally(tile, of);
        const u32 share = (EIGHTS + of.others) / (of.others + 1);
        bool more = thread == 0 && (last || tally.all_arrived());
        while (true) {
            if (thread == 0) *told = more ? tally.claim() * share : EIGHTS;
            bar_sync<1, MULTIPLIERS>();
            const u32 from = *told;
            if (from >= EIGHTS) break;
            __threadfence();
            store(tile, of, from, min(from + share, EIGHTS));
            more = last;
            bar_sync<1, MULTIPLIERS>(); // all have read it
        }
        if (thread == 0) tally.leave();
        bar_sync<1, MULTIPLIERS>();
    }
};

extern "C" __global__ void __launch_bounds__(384, 1) columns_wide(const __grid_constant__ ColumnsArgs args) {
    extern __shared__ __align__(1024) u8 all_shared[];
    __shared__ u32 told;
    // The ring of x, the ring of weights, the barriers of both.
    const u32 x_ring = round_up(shared_address(all_shared), 1024), w_ring = x_ring + PANELS * PANEL_BYTES;
    const u32 barriers = w_ring + STAGES * W_STAGE;
    const WeightRing weights(barriers);
    const XRing panels(barriers + 2 * STAGES * 8);
    const GemmArgs& a = args.gemm;
    const Run run(a);
    const u32 thread = threadIdx.x;
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            mbarrier_init(weights.barriers + 8 * i, COPIERS);
            mbarrier_init(weights.barriers + 8 * (STAGES + i), WARPS);
        }
        for (u32 i = 0; i < PANELS; i++) {
            mbarrier_init(panels.barriers + 8 * i, 1);
            mbarrier_init(panels.barriers + 8 * (PANELS + i), WARPS);
        }
        mbarriers_ready();
    }
    __syncthreads();
    grid_release();
    if (thread < GROUP_THREADS) {
        fewer_registers<KEPT>();
        if (thread < COPIERS) copy_all_weights(args, run, w_ring, weights);
        if (thread != X_COPIER) return;
        grid_wait();
        if (nothing_to_do(args)) return;
        copy_all_x(a, run, args.first, x_ring, panels);
        return;
    }
    more_registers<TAKEN>();
    grid_wait();
    const u32 mine = thread - GROUP_THREADS;
    Multiplier m = {args, run, all_shared + (w_ring - shared_address(all_shared)), x_ring, weights, panels, a.step->live, mine, mine / 32, mine % 32, &told};
    if (nothing_to_do(args)) {
        // The block may not leave while copies of weights are in flight.
        for (u32 unit = run.begin; unit < min(run.begin + STAGES, run.end); unit++) {
            m.weights.await_full();
            m.weights.advance();
        }
        return;
    }
    m.clear();
    const u32 first_tile = run.begin / run.chunks, last_tile = (run.end - 1) / run.chunks;
    bool first_last = false, last_last = false;
    u32 chunk = run.begin % run.chunks;
    for (u32 unit = run.begin, tile = first_tile; unit < run.end; tile++, chunk = 0) {
        const u32 count = min(run.chunks - chunk, run.end - unit);
        m.multiply_all(chunk, count);
        last_last = m.end_tile(tile);
        if (tile == first_tile) first_last = last_last;
        unit += count;
    }
    m.add_up(first_tile, first_last);
    if (last_tile != first_tile) m.add_up(last_tile, last_last);
}

#endif
