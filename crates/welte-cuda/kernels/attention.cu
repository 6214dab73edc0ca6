// Decode attention: flash decoding over pages. A context is cut into at most `splits` splits; the cuts depend on the positions
// that a row attends to. A job is one split for up to eight heads that share keys. Blocks take the jobs of all rows in turn, so that
// sequences of different lengths keep all of them busy. A warp takes every WARPS-th tile of 16 positions, which it copies
// through its own ring.
//
// The products use the tensor cores. Rows 0-7 of an operand are the heads rounded to f16, rows 8-15 the rounding errors as
// f16, so q and the weights keep their precision. The last block to finish adds the splits in order.
//
// Macros: HEAD_DIM (a multiple of 8), PAGE (a multiple of 16), KV_Q8, GROUP (heads per kv head), WARPS, STAGES,
// LEAST_TILES (of a split).
#define TILE 16
#define HEADS 8
#include "splits.cuh"

constexpr u32 C32 = (HEAD_DIM + 31) / 32;    // groups of 32 dimensions: two steps of the product with the keys
constexpr u32 D64 = (HEAD_DIM + 63) / 64;    // groups of 64 dimensions: eight tiles of the product with the values
constexpr u32 WIDE = D64 * 64;
constexpr u32 CHUNKS = HEAD_DIM / 8;         // of 16 bytes of f16
constexpr u32 PART_BYTES = KV_Q8 ? TILE * KV_ROW : TILE * WIDE * 2;
constexpr u32 STAGE_BYTES = 2 * PART_BYTES;  // keys, then values

// The row of position n in half `half` of a tile. No two lanes access the same bank.
__device__ __forceinline__ constexpr u32 place(u32 half, u32 n) {
    return KV_Q8 ? (n % 4) * 4 + n / 4 + 2 * half : half * 8 + n;
}

__device__ __forceinline__ u32 swizzle(u32 row) { return (row & 1) << 2 ^ (row >> 1 & 3) << 1; }

// Eight values of a position of the tile, as f16.
__device__ __forceinline__ uint4 chunk(const u8 *part, u32 row, u32 index) {
    if constexpr (KV_Q8) {
        if (WIDE != HEAD_DIM && index >= CHUNKS) return make_uint4(0, 0, 0, 0);
        return q8_chunk(part + row * KV_ROW, index);
    } else {
        return *(const uint4 *)(part + (row * (WIDE / 8) + (index ^ swizzle(row))) * 16);
    }
}

struct Ring {
    const Kv &kv;
    u32 slot, head, first, last, lane;
    u8 *shared;

    __device__ __forceinline__ void fetch(u32 tile, u32 stage) const {
        u32 at = tile * TILE, page = kv_page(kv, slot, at);
        u32 to = shared_address(shared) + stage * STAGE_BYTES;
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u8 *from = kv_head(kv, part, page, head) + (u64)(at % PAGE) * KV_ROW;
            if constexpr (KV_Q8) {
#pragma unroll
                for (u32 i = 0; i < (KV_ROW + 31) / 32; ++i) {
                    u32 c = lane + i * 32;
                    if (c < KV_ROW) copy_async<16>(to + part * PART_BYTES + c * 16, from + c * 16, true);
                }
            } else {
#pragma unroll
                for (u32 i = 0; i < (TILE * CHUNKS + 31) / 32; ++i) {
                    u32 c = lane + i * 32, row = c / CHUNKS, index = c % CHUNKS;
                    if (TILE * CHUNKS % 32 && row >= TILE) break;
                    bool wanted = at + row >= first && at + row <= last;
                    copy_async<16>(to + part * PART_BYTES + (row * (WIDE / 8) + (index ^ swizzle(row))) * 16, from + c * 16, wanted);
                }
            }
        }
    }
};

// The online softmax of eight heads. Lane (g, t) = (lane / 4, lane % 4) works on head g.
struct Heads {
    u32 q[C32 * 2][4];
    float o[D64 * 8][4];
    float largest, total;

    __device__ __forceinline__ void begin(const AttentionArgs &a, const float (&x)[C32][8]) {
        float factor = q_factor(a);
#pragma unroll
        for (u32 c = 0; c < C32; ++c)
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
                pack_both(x[c][i * 2] * factor, x[c][i * 2 + 1] * factor, q[c * 2 + i / 2][i % 2 * 2], q[c * 2 + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (u32 i = 0; i < D64 * 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        largest = NEVER;
        total = 0;
    }

    __device__ __forceinline__ void take(const AttentionArgs &a, const u8 *stage, u32 at, const Split &s, u32 g, u32 t) {
        float sc[2][4] = {};
#pragma unroll
        for (u32 c = 0; c < C32; ++c)
#pragma unroll
            for (u32 h = 0; h < 2; ++h) {
                uint4 k = chunk(stage, place(h, g), c * 4 + t);
                mma_f16(sc[h], q[c * 2], k.x, k.y);
                mma_f16(sc[h], q[c * 2 + 1], k.z, k.w);
            }
        float w[2][2], m = NEVER;
        bool edge = at < s.first || at + TILE > s.last + 1;
#pragma unroll
        for (u32 h = 0; h < 2; ++h)
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                u32 position = at + place(h, t * 2 + i);
                w[h][i] = capped(a, sc[h][i] + sc[h][i + 2]);
                if (edge && (position < s.first || position > s.last)) w[h][i] = NEVER;
                m = fmaxf(m, w[h][i]);
            }
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        m = fmaxf(m, largest);
        if (__any_sync(~0u, m > largest)) {
            float shrink = power(largest - m);
            total *= shrink;
#pragma unroll
            for (u32 i = 0; i < D64 * 8; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) o[i][j] *= shrink;
            largest = m;
        }
#pragma unroll
        for (u32 h = 0; h < 2; ++h)
#pragma unroll
            for (u32 i = 0; i < 2; ++i) total += w[h][i] = power(w[h][i] - m);
        u32 p[4];
        pack_both(w[0][0], w[0][1], p[0], p[1]);
        pack_both(w[1][0], w[1][1], p[2], p[3]);
#pragma unroll
        for (u32 d = 0; d < D64; ++d) {
            u32 v[4][4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                u32 row = place(i / 2, t * 2 + i % 2);
                uint4 x = chunk(stage + PART_BYTES, row, d * 8 + g);
                bool there = !KV_Q8 || !edge || (at + row >= s.first && at + row <= s.last);
                v[i][0] = there ? x.x : 0;
                v[i][1] = there ? x.y : 0;
                v[i][2] = there ? x.z : 0;
                v[i][3] = there ? x.w : 0;
            }
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                u32 how = j % 2 ? 0x7632 : 0x5410;
                mma_f16(o[d * 8 + j], p, __byte_perm(v[0][j / 2], v[1][j / 2], how), __byte_perm(v[2][j / 2], v[3][j / 2], how));
            }
        }
    }

    // Writes [head][WIDE sums, maximum, sum of weights, two unused].
    __device__ __forceinline__ void save(float *shared, u32 g, u32 t) {
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        float *y = shared + g * (WIDE + 4);
#pragma unroll
        for (u32 d = 0; d < D64; ++d)
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                y[d * 64 + t * 16 + j] = o[d * 8 + j][0] + o[d * 8 + j][2];
                y[d * 64 + t * 16 + 8 + j] = o[d * 8 + j][1] + o[d * 8 + j][3];
            }
        if (t == 0) {
            y[WIDE] = largest;
            y[WIDE + 1] = total;
        }
    }
};

constexpr u32 SAVED = WIDE + 4; // floats per head and warp
// One job. Shared memory holds first the rings, then the warps' results, then the merge of the splits, all in the same place.
__device__ void attend(const AttentionArgs &a, u8 *shared, const Job &job) {
    __shared__ float2 heads[8]; // maximum and sum of weights
    u32 t = threadIdx.x, warp = t / 32, lane = t % 32, head = job.first_head(), mine = job.heads();
    u8 *ring = shared + warp * STAGES * STAGE_BYTES;
    if constexpr (!KV_Q8 && WIDE != HEAD_DIM) {
        for (u32 i = lane; i < STAGES * STAGE_BYTES / 16; i += 32) ((uint4 *)ring)[i] = make_uint4(0, 0, 0, 0);
        __syncwarp();
    }
    Split s = split_of(a, job.at, job.index);
    Ring from = {a.kv, job.at.slot, job.kv_head(), s.first, s.last, lane, ring};
    u32 next = s.begin + warp;
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i, next += WARPS) {
        if (next < s.end) from.fetch(next, i);
        copy_commit();
    }
    const float *q = a.q + (u64)job.row * a.q_stride + (u64)(head + lane / 4) * HEAD_DIM + lane % 4 * 8;
    float x[C32][8];
#pragma unroll
    for (u32 c = 0; c < C32; ++c)
#pragma unroll
        for (u32 i = 0; i < 8; ++i) x[c][i] = lane / 4 < mine && c * 32 + lane % 4 * 8 + i < HEAD_DIM ? q[c * 32 + i] : 0.0f;
    Heads h;
    h.begin(a, x);
    u32 stage = 0;
    for (u32 tile = s.begin + warp; tile < s.end; tile += WARPS, next += WARPS) {
        copy_wait<STAGES - 2>();
        __syncwarp();
        if (next < s.end) from.fetch(next, stage == 0 ? STAGES - 1 : stage - 1);
        copy_commit();
        h.take(a, ring + stage * STAGE_BYTES, tile * TILE, s, lane / 4, lane % 4);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    __syncthreads();
    float *saved = (float *)shared;
    h.save(saved + warp * 8 * SAVED, lane / 4, lane % 4);
    __syncthreads();

    if (t < 8) { // the weight of each warp's sums for head t
        float largest = NEVER, total = 0;
        for (u32 w = 0; w < WARPS; ++w) largest = fmaxf(largest, saved[(w * 8 + t) * SAVED + WIDE]);
        for (u32 w = 0; w < WARPS; ++w) {
            float *of = saved + (w * 8 + t) * SAVED + WIDE;
            of[2] = power(of[0] - largest);
            total += of[1] * of[2];
        }
        // The sink counts once: here, or where the splits are merged.
        if (s.active == 1 && t < mine) total += sink_weight(a.sinks, head + t, largest);
        heads[t] = make_float2(largest, total);
    }
    __syncthreads();
    constexpr u32 D4 = HEAD_DIM / 4;
    float *y = a.y + (u64)job.row * a.y_stride + (u64)head * HEAD_DIM;
    Partials p = partials_of(a, job);
    for (u32 i = t; i < mine * D4; i += THREADS) {
        u32 h = i / D4, d = i % D4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            const float *of = saved + (w * 8 + h) * SAVED;
            add_to(sum, of[WIDE + 2], *(const float4 *)(of + d * 4));
        }
        if (s.active == 1)
            put(y + i * 4, sum, 1.0f / heads[h].y);
        else
            p.sums[((u64)h * a.splits + job.index) * D4 + d] = sum;
    }
    if (s.active == 1) return;
    if (t < mine) p.heads[t * a.splits + job.index] = heads[t];
    merge_if_last(a, job, p, s.active, saved, y);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention(const __grid_constant__ AttentionArgs a) {
    extern __shared__ __align__(128) u8 shared[];
    grid_release();
    grid_wait();
    for_each_job(a, [&](const Job &job) { attend(a, shared, job); });
}
