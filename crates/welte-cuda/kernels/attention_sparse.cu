// Attention over the positions that were chosen for each row. A block takes some heads of one row that share keys, and walks the list in
// tiles of as many positions as a warp has lanes. The bits do not depend on how many heads it takes.
// Macros: HEAD_DIM, PAGE, KV_Q8; HEADS, heads of a block, a multiple of 4.
#include "kv.cuh"
#include "softmax.cuh"

#define THREADS 128
constexpr u32 TILE = 32, WARPS = THREADS / 32;
constexpr u32 PER_THREAD = (HEAD_DIM + THREADS - 1) / THREADS;
// Rows of whole quads are copied and read as such.
constexpr bool QUADS = KV_ROW % 16 == 0;
constexpr u32 COPIED = QUADS ? 16 : 2;
constexpr u32 STRIDE = KV_ROW + COPIED;

struct SparseArgs {
    const Step *step;
    const float *q;
    float *y;
    Kv kv;
    const u32 *chosen;
    u32 heads;
    u32 q_stride;
    u32 y_stride;
    u32 chosen_stride;
    u32 used; // positions that are chosen
    float scale;
    u32 single; // not 0: only one row is live
    u32 unused;
};

// The product of a query with a key in shared memory.
__device__ __forceinline__ float product(const float *q, const u8 *key) {
    float sum = 0;
    if constexpr (QUADS && !KV_Q8) {
#pragma unroll 4
        for (u32 i = 0; i < HEAD_DIM; i += 8) {
            uint4 words = *(const uint4 *)(key + 2 * i);
            const __half2 *pairs = (const __half2 *)&words;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                float2 pair = __half22float2(pairs[j]);
                sum += q[i + 2 * j] * pair.x;
                sum += q[i + 2 * j + 1] * pair.y;
            }
        }
    } else {
        for (u32 i = 0; i < HEAD_DIM; ++i) sum += q[i] * kv_element(key, i);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_sparse(const __grid_constant__ SparseArgs a) {
    __shared__ float q[HEADS * HEAD_DIM];
    extern __shared__ __align__(16) u8 tile[]; // TILE rows of STRIDE
    __shared__ u32 positions[TILE];
    __shared__ float weights[HEADS][TILE];
    __shared__ float shrinks[HEADS], totals[HEADS];
    grid_release();
    grid_wait();
    u32 row = blockIdx.x, t = threadIdx.x, warp = t / 32, lane = t % 32;
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return;
    Row at = a.step->rows[row];
    u32 group = a.heads / a.kv.heads, blocks = (group + HEADS - 1) / HEADS;
    u32 kv_of_heads = blockIdx.y / blocks, begin = blockIdx.y % blocks * HEADS, heads = min((u32)HEADS, group - begin);
    u32 first = kv_of_heads * group + begin;
    for (u32 i = t; i < heads * HEAD_DIM; i += THREADS)
        q[i] = a.q[(u64)row * a.q_stride + first * HEAD_DIM + i] * (a.scale * LOG2E);
    const u32 *chosen = a.chosen + (u64)row * a.chosen_stride;
    bool all = at.reach < a.used;
    u32 end = all ? at.reach + 1 : a.used;
    float sums[HEADS][PER_THREAD] = {}, largest[HEADS / WARPS], total[HEADS / WARPS] = {};
#pragma unroll
    for (u32 i = 0; i < HEADS / WARPS; ++i) largest[i] = NEVER;
    for (u32 from = 0; from < end; from += TILE) {
        u32 count = min(TILE, end - from);
        if (t < count) positions[t] = all ? from + t : chosen[from + t];
        auto copy = [&](u32 part) {
            __syncthreads();
            for (u32 i = t; i < count * (KV_ROW / COPIED); i += THREADS) {
                u32 n = i / (KV_ROW / COPIED), offset = i % (KV_ROW / COPIED) * COPIED;
                Row other = {0, positions[n], at.slot};
                const u8 *source = kv_at(a.kv, part, kv_of_heads, other) + offset;
                if constexpr (QUADS)
                    *(uint4 *)(tile + n * STRIDE + offset) = *(const uint4 *)source;
                else
                    *(u16 *)(tile + n * STRIDE + offset) = *(const u16 *)source;
            }
            __syncthreads();
        };
        copy(0);
#pragma unroll
        for (u32 i = 0; i < HEADS / WARPS; ++i) {
            u32 head = i * WARPS + warp;
            if (head >= heads) continue;
            float score = NEVER;
            if (lane < count) score = product(q + head * HEAD_DIM, tile + lane * STRIDE);
            float before = largest[i];
            largest[i] = fmaxf(before, warp_max(score));
            float weight = lane < count ? exp2f(score - largest[i]) : 0.0f, shrink = exp2f(before - largest[i]);
            total[i] = total[i] * shrink + warp_sum(weight);
            weights[head][lane] = weight;
            if (lane == 0) shrinks[head] = shrink;
        }
        copy(1);
#pragma unroll
        for (u32 head = 0; head < HEADS; ++head)
#pragma unroll
            for (u32 j = 0; j < PER_THREAD; ++j)
                if (head < heads) sums[head][j] *= shrinks[head];
        for (u32 n = 0; n < count; ++n) {
#pragma unroll
            for (u32 j = 0; j < PER_THREAD; ++j) {
                u32 i = t + j * THREADS;
                float value = i < HEAD_DIM ? kv_element(tile + n * STRIDE, i) : 0.0f;
#pragma unroll
                for (u32 head = 0; head < HEADS; ++head)
                    if (head < heads) sums[head][j] += weights[head][n] * value;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < HEADS / WARPS; ++i)
        if (lane == 0) totals[i * WARPS + warp] = total[i];
    __syncthreads();
#pragma unroll
    for (u32 head = 0; head < HEADS; ++head)
#pragma unroll
        for (u32 j = 0; j < PER_THREAD; ++j) {
            u32 i = t + j * THREADS;
            if (head < heads && i < HEAD_DIM) a.y[(u64)row * a.y_stride + (first + head) * HEAD_DIM + i] = sums[head][j] / totals[head];
        }
}
