// Flash attention for many rows. A block takes WARPS * TILES * 16 rows of one head, and each warp takes 16 rows at a time.
// The block walks the context in steps of STEP positions and fetches one step ahead. q, k, v and the weights are f16; sums
// are f32. Rows may belong to different sequences, and the block walks each of them in turn. On sm_90a the products are
// asynchronous warp-group instructions, which read shared memory themselves; elsewhere they are warp instructions.
// Macros: HEAD_DIM (a multiple of 8), PAGE (a multiple of 16), KV_Q8, WARPS, TILES.
#include "prompt.cuh"

constexpr u32 THREADS = WARPS * 32;
constexpr u32 ROWS = WARPS * TILES * 16;
constexpr u32 PART_BYTES = STEP * WIDE * 2;
constexpr u32 RAW_BYTES = KV_Q8 ? STEP * KV_ROW : 0;
constexpr bool WHOLE_PAGES = PAGE % STEP == 0;
constexpr u32 BUFFERS = KV_Q8 ? 1 : 2;
// With wide heads or two tiles per warp, q does not stay in registers and is read again in every step.
#define Q_STAYS (TILES == 1 && HEAD_DIM <= 128 && !WARP_GROUP)
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && WARPS % 4 == 0 && TILES == 1 && (HEAD_DIM == 64 || HEAD_DIM == 128)
#define WARP_GROUP 1
#else
#define WARP_GROUP 0
#endif
// Shared memory, aligned to 1024 bytes: q, then [buffer][keys, values], then for Q8_0 the encoded keys and values.

#if WARP_GROUP
#include "wgmma.cuh"
#endif

// Makes writes to shared memory visible to the asynchronous products.
__device__ __forceinline__ void show_to_products() {
#if WARP_GROUP
    show_to_async();
#endif
}

struct Fetch {
    const Kv &kv;
    u32 head;
    u8 *to; // in shared memory: parts, then encoded parts

    __device__ __forceinline__ const u8 *from(const Span &s, u32 part, u32 position) const {
        return kv_head(kv, part, kv_page(kv, s.slot, position), head) + (u64)(position % PAGE) * KV_ROW;
    }

    // Starts copying a step's keys and values. Positions outside the span become zeros.
    __device__ __forceinline__ void start(const Span &s, u32 step, u32 buffer) const {
        u32 at = step * STEP;
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u8 *page = WHOLE_PAGES ? from(s, part, at) : nullptr;
            if constexpr (KV_Q8) { // whole groups of 16 positions, encoded as in the page
                u32 out = shared_address(to) + 2 * PART_BYTES + part * RAW_BYTES;
                for (u32 c = threadIdx.x; c < STEP / 16 * KV_ROW; c += THREADS) {
                    u32 group = c / KV_ROW, inside = c % KV_ROW, position = at + group * 16;
                    if (position > s.high) break;
                    const u8 *p = WHOLE_PAGES ? page + group * 16 * KV_ROW : from(s, part, position);
                    copy_async<16>(out + c * 16, p + inside * 16, true);
                }
            } else {
                u32 out = shared_address(to) + (buffer * 2 + part) * PART_BYTES;
#pragma unroll
                for (u32 i = 0; i < (STEP * CHUNKS + THREADS - 1) / THREADS; ++i) {
                    u32 c = threadIdx.x + i * THREADS, row = c / CHUNKS, chunk = c % CHUNKS, position = at + row;
                    if (STEP * CHUNKS % THREADS && row >= STEP) break;
                    bool wanted = position >= s.low && position <= s.high;
                    const u8 *p = WHOLE_PAGES ? page + c * 16 : from(s, part, wanted ? position : s.high) + chunk * 16;
                    copy_async<16>(out + at_chunk<STEP>(row, chunk), p, wanted);
                }
            }
        }
        copy_commit();
    }

    // Decodes the fetched Q8_0 values to f16.
    __device__ __forceinline__ void widen(const Span &s, u32 step) const {
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u8 *raw = to + 2 * PART_BYTES + part * RAW_BYTES;
#pragma unroll 4
            for (u32 c = threadIdx.x; c < STEP * CHUNKS; c += THREADS) {
                u32 row = c / CHUNKS, chunk = c % CHUNKS, position = step * STEP + row;
                uint4 v = make_uint4(0, 0, 0, 0);
                if (position >= s.low && position <= s.high) v = q8_chunk(raw + row * KV_ROW, chunk);
                *(uint4 *)(to + part * PART_BYTES + at_chunk<STEP>(row, chunk)) = v;
            }
        }
    }
};

__device__ __forceinline__ void cap_scores(const AttentionArgs &a, float (&s)[STEP / 8][4]) {
    if (a.softcap != 0.0f)
#pragma unroll
        for (u32 n = 0; n < STEP / 8; ++n)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) s[n][i] = capped(a, s[n][i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_prefill(const __grid_constant__ AttentionArgs a) {
    extern __shared__ __align__(128) u8 dynamic[];
    u8 *shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    __shared__ Places<ROWS> places;
    u32 head = blockIdx.x, first_row = (gridDim.y - 1 - blockIdx.y) * ROWS, t = threadIdx.x;
    u32 lane = t % 32, warp_row = t / 32 * TILES * 16;
    u8 *parts = shared + ROWS * WIDE * 2;
    if constexpr (WIDE != HEAD_DIM) {
        for (u32 i = t; i < (ROWS * WIDE * 2 + BUFFERS * 2 * PART_BYTES) / 16; i += THREADS) ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    grid_release();
    grid_wait();
    u32 live = a.single ? 1 : a.step->live;
    if (a.step->ended || first_row >= live) return;
    load_rows<ROWS, THREADS>(a, first_row, live, head, places, shared);
    show_to_products();
    __syncthreads();

    Tile tile[TILES];
    u32 q_regs[Q_STAYS ? STEPS_K : 1][4];
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
        for (u32 n = 0; n < TILES_V; ++n) tile[m].o[n][0] = tile[m].o[n][1] = tile[m].o[n][2] = tile[m].o[n][3] = 0;
        tile[m].largest[0] = tile[m].largest[1] = NEVER;
        tile[m].total[0] = tile[m].total[1] = 0;
    }
    u32 q_address = shared_address(shared);
    auto load_q = [&](u32 (&r)[4], u32 m, u32 k) { load_matrices(r, q_address + at_chunk<ROWS>(warp_row + m * 16 + lane % 16, k * 2 + lane / 16)); };
    if constexpr (Q_STAYS)
#pragma unroll
        for (u32 k = 0; k < STEPS_K; ++k) load_q(q_regs[k], 0, k);

    Fetch fetch = {a.kv, head / (a.heads / a.kv.heads), parts};
    u32 done = 0; // slots below this number are done
    for (;;) {
        Span span = next_span(a, places, done);
        if (span.slot == NO_SLOT) break;
        done = span.slot + 1;
        int least = 0x7fffffff, most = -1; // positions that the warp's rows attend to
#pragma unroll
        for (u32 m = 0; m < TILES; ++m)
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                u32 row = warp_row + m * 16 + lane / 4 + r * 8;
                places.limits(a, row, span.slot, tile[m].low[r], tile[m].high[r]);
                least = min(least, tile[m].low[r]);
                most = max(most, tile[m].high[r]);
            }
        least = __reduce_min_sync(~0u, least);
        most = __reduce_max_sync(~0u, most);

        u32 begin = span.low / STEP, end = span.high / STEP + 1;
        fetch.start(span, begin, 0);
        for (u32 step = begin; step < end; ++step) {
            u32 buffer = KV_Q8 ? 0 : (step - begin) & 1;
            copy_wait<0>();
            show_to_products();
            __syncthreads();
            if constexpr (KV_Q8) {
                fetch.widen(span, step);
                show_to_products();
                __syncthreads();
            }
            if (step + 1 < end) fetch.start(span, step + 1, buffer ^ 1);
            int at = step * STEP;
            u32 keys = shared_address(parts) + buffer * 2 * PART_BYTES, values = keys + PART_BYTES;
            u32 p[TILES][STEP / 16][4];
#if WARP_GROUP
            float s[STEP / 8][4];
            wgmma_begin();
#pragma unroll
            for (u32 k = 0; k < STEPS_K; ++k) {
                u32 q = q_address + (k / 4 * ROWS + t / 128 * 64) * 128 + k % 4 * 32;
                wgmma_from(s, wgmma_operand(q, 16, 1024), wgmma_operand(keys + k / 4 * STEP * 128 + k % 4 * 32, 16, 1024), k);
            }
            wgmma_commit();
            wgmma_wait<0>();
            cap_scores(a, s);
            tile[0].take(s, at, lane % 4, p[0]);
            wgmma_begin();
#pragma unroll
            for (u32 k = 0; k < STEP / 16; ++k)
                wgmma_turned(tile[0].o, p[0][k], wgmma_operand(values + k * 16 * 128, STEP * 128, 1024));
            wgmma_commit();
            wgmma_wait<0>();
#else
            if (at > most || at + STEP <= least) continue;
            {
                float s[TILES][STEP / 8][4] = {};
#pragma unroll
                for (u32 k = 0; k < STEPS_K; ++k) {
                    u32 q[TILES][4];
#pragma unroll
                    for (u32 m = 0; m < TILES; ++m) {
                        if constexpr (Q_STAYS) {
#pragma unroll
                            for (u32 i = 0; i < 4; ++i) q[m][i] = q_regs[k][i];
                        } else {
                            load_q(q[m], m, k);
                        }
                    }
#pragma unroll
                    for (u32 n = 0; n < STEP / 16; ++n) {
                        u32 b[4];
                        load_matrices(b, keys + at_chunk<STEP>(n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                        for (u32 m = 0; m < TILES; ++m) {
                            mma_f16(s[m][n * 2], q[m], b[0], b[1]);
                            mma_f16(s[m][n * 2 + 1], q[m], b[2], b[3]);
                        }
                    }
                }
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
                    cap_scores(a, s[m]);
                    tile[m].take(s[m], at, lane % 4, p[m]);
                }
            }
#pragma unroll
            for (u32 k = 0; k < STEP / 16; ++k)
#pragma unroll
                for (u32 n = 0; n < TILES_V / 2; ++n) {
                    u32 b[4];
                    load_matrices_turned(b, values + at_chunk<STEP>(k * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
                    for (u32 m = 0; m < TILES; ++m) {
                        mma_f16(tile[m].o[n * 2], p[m][k], b[0], b[1]);
                        mma_f16(tile[m].o[n * 2 + 1], p[m][k], b[2], b[3]);
                    }
                }
#endif
        }
        __syncthreads(); // before the next sequence's first step is fetched
    }

#pragma unroll
    for (u32 m = 0; m < TILES; ++m)
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float total = tile[m].total[r];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            u32 row = first_row + warp_row + m * 16 + lane / 4 + r * 8;
            if (row >= live) continue;
            float *y = a.y + (u64)row * a.y_stride + head * HEAD_DIM + lane % 4 * 2;
            float share = 1.0f / (total + sink_weight(a.sinks, head, tile[m].largest[r]));
#pragma unroll
            for (u32 n = 0; n < TILES_V; ++n)
                if (n * 8 < HEAD_DIM) {
                    y[n * 8] = tile[m].o[n][r * 2] * share;
                    y[n * 8 + 1] = tile[m].o[n][r * 2 + 1] * share;
                }
        }
}
