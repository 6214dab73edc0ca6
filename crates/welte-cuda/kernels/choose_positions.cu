// The choice of the positions that a row sees: scores of all of them, then the best. Rows that see no more than are chosen have no scores.
// Macros: HEAD_DIM (half of a key, which caches keep as the key of a head and as its value), PAGE, KV_Q8.
#include "kv.cuh"

#define SCORE_THREADS 128
#define CHOOSE_THREADS 512
constexpr u32 KEY = 2 * HEAD_DIM;
// Heads whose queries are in shared memory.
constexpr u32 HEADS = KEY < 4096 ? 4096 / KEY : 1;

struct ChooseArgs {
    const Step *step;
    const float *q;
    const float *gates; // of each head
    u32 *y;
    Kv kv;
    float *scores; // [row][position]
    u32 heads;
    u32 q_stride;
    u32 gates_stride;
    u32 y_stride;
    u32 used;    // positions that are chosen
    u32 context; // the most positions
    u32 single;  // not 0: only one row is live
    u32 first;   // row to start with
};

// The row of a block; false: there is nothing to do.
__device__ __forceinline__ bool row_at(const ChooseArgs &a, u32 row, Row &at) {
    if (a.step->ended || row >= (a.single ? 1 : a.step->live)) return false;
    at = a.step->rows[row];
    return true;
}

// A thread has one position.
extern "C" __global__ void __launch_bounds__(SCORE_THREADS) choose_scores(const __grid_constant__ ChooseArgs a) {
    __shared__ float q[HEADS * KEY];
    __shared__ float gates[HEADS];
    grid_release();
    grid_wait();
    u32 row = a.first + blockIdx.y, from = blockIdx.x * SCORE_THREADS, t = threadIdx.x;
    Row at;
    if (!row_at(a, row, at)) return;
    u32 end = at.reach + 1;
    if (end <= a.used || from >= end) return;
    Row other = {0, min(from + t, end - 1), at.slot};
    float key[KEY], score = 0;
    for (u32 part = 0; part < 2; ++part) {
        const u8 *half = kv_at(a.kv, part, 0, other);
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM; ++i) key[part * HEAD_DIM + i] = kv_element(half, i);
    }
    for (u32 first = 0; first < a.heads; first += HEADS) {
        u32 count = min(HEADS, a.heads - first);
        __syncthreads();
        for (u32 i = t; i < count * KEY; i += SCORE_THREADS) q[i] = a.q[(u64)row * a.q_stride + first * KEY + i];
        for (u32 i = t; i < count; i += SCORE_THREADS) gates[i] = a.gates[(u64)row * a.gates_stride + first + i];
        __syncthreads();
        for (u32 head = 0; head < count; ++head) {
            float sum = 0;
#pragma unroll
            for (u32 i = 0; i < KEY; ++i) sum += q[head * KEY + i] * key[i];
            score += gates[head] * fmaxf(sum, 0.0f);
        }
    }
    if (from + t < end) a.scores[(u64)blockIdx.y * a.context + from + t] = score;
}

// A number whose order is that of the scores. Both zeros have the same one.
__device__ __forceinline__ u32 rank_of(float score) {
    u32 bits = __float_as_uint(score);
    if ((bits & 0x7fffffffu) == 0) return 0x80000000u;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A block has a row. The rank of the last position that is chosen is found eight bits at a time.
extern "C" __global__ void __launch_bounds__(CHOOSE_THREADS) choose_positions(const __grid_constant__ ChooseArgs a) {
    __shared__ u32 counts[256];
    __shared__ u32 above[CHOOSE_THREADS], equal[CHOOSE_THREADS];
    __shared__ u32 known, left;
    grid_release();
    grid_wait();
    u32 row = a.first + blockIdx.x, t = threadIdx.x;
    Row at;
    if (!row_at(a, row, at)) return;
    u32 end = at.reach + 1;
    u32 *y = a.y + (u64)row * a.y_stride;
    if (end <= a.used) {
        for (u32 i = t; i < a.used; i += CHOOSE_THREADS) y[i] = i < end ? i : 0;
        return;
    }
    const float *scores = a.scores + (u64)blockIdx.x * a.context;
    if (t == 0) {
        known = 0;
        left = a.used;
    }
    for (u32 shift = 24;; shift -= 8) {
        if (t < 256) counts[t] = 0;
        __syncthreads();
        u32 bits = known;
        for (u32 i = t; i < end; i += CHOOSE_THREADS) {
            u32 rank = rank_of(scores[i]);
            if (shift == 24 || rank >> (shift + 8) == bits >> (shift + 8)) atomicAdd(&counts[rank >> shift & 255], 1u);
        }
        __syncthreads();
        if (t == 0) {
            u32 byte = 255, rest = left;
            for (; byte > 0 && counts[byte] < rest; --byte) rest -= counts[byte];
            known = bits | byte << shift;
            left = rest;
        }
        __syncthreads();
        if (shift == 0) break;
    }
    // Each thread has neighbouring positions. Sums of what comes before them.
    u32 last = known, each = (end + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
    u32 from = min(t * each, end), to = min(from + each, end), more = 0, same = 0;
    for (u32 i = from; i < to; ++i) {
        u32 rank = rank_of(scores[i]);
        more += rank > last;
        same += rank == last;
    }
    above[t] = more;
    equal[t] = same;
    __syncthreads();
    for (u32 step = 1; step < CHOOSE_THREADS; step *= 2) {
        u32 before = t >= step ? above[t - step] : 0, alike = t >= step ? equal[t - step] : 0;
        __syncthreads();
        above[t] += before;
        equal[t] += alike;
        __syncthreads();
    }
    u32 taken = min(equal[t] - same, left);
    u32 *place = y + (above[t] - more) + taken;
    for (u32 i = from; i < to; ++i) {
        u32 rank = rank_of(scores[i]);
        if (rank < last || rank == last && taken == left) continue;
        taken += rank == last;
        *place++ = i;
    }
}
